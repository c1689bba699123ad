"""`prorl-mq install-tools`: a bar on the terminal, what the installers say in a log file."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prorl_mq.cli.installing import parts
from prorl_mq.cli.installing.progress import Installing
from prorl_mq.cli.interruption import interruptible
from prorl_mq.errors import ConfigurationError
from prorl_mq.process.arguments import unknown
from prorl_mq.process.children import Guard
from prorl_mq.process.screen.terminal import attended

FAULTS = (ConfigurationError,)
SHOWN: Final = 15  # last lines of an installer that failed
REMARKS: Final = 4  # of one that could not install all
GATE: Final = ("bash", "-c", 'read -r && exec "$@" </dev/null', "-")  # begins when its guard knows of it


async def run(given: argparse.Namespace) -> int:
    for name in given.parts:
        if name not in parts.PARTS:
            raise ConfigurationError(unknown("part", name, parts.PARTS))
    await install(given.parts or parts.USUAL, given.state_dir.absolute())
    return 0


async def offer_to_install(names: Sequence[str], state: Path) -> None:
    """Installs parts that are missing, if a person at a terminal agrees."""
    absent = [name for name in names if not parts.complete(parts.PARTS[name], state)]
    if not absent or not attended(sys.stdin, sys.stderr):
        return
    print(f"not installed in {state}:", file=sys.stderr)
    for name in absent:
        print(f"  {name}: {parts.PARTS[name].what}", file=sys.stderr)
    print("install it now? [Y/n] ", end="", file=sys.stderr, flush=True)
    answer = await _typed()
    if answer and answer.strip().lower() in {"", "y", "yes"}:  # the end of the input is no answer
        await install(absent, state)


async def _typed() -> str:
    """A line from the terminal. In a thread a read would outlast Ctrl-C."""
    loop, there = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, there.set)
    try:
        await there.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()


async def install(names: Sequence[str], state: Path) -> None:
    """Installs parts one after the other. Raises `ConfigurationError`."""
    log = state / "logs" / "install-tools.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    progress, remarks = Installing({name: parts.PARTS[name].seconds for name in names}), list[str]()
    print(f"installing into {state}; what the installers say is in {log}", file=sys.stderr)
    async with progress.shown():
        for name in names:
            part = parts.PARTS[name]
            progress.begin(name, part.what)
            if isinstance(part.step, parts.FolderCopy):
                await asyncio.to_thread(parts.copy, part.step, state)
            else:
                remarks += await _run(parts.argv_of(part.step, state), log, progress)
            progress.end()
    for line in remarks:
        print(line)
    for name in names:
        print(f"{name}: {parts.PARTS[name].what}")


async def _run(argv: Sequence[str], log: Path, progress: Installing) -> list[str]:
    """Runs an installer. Its last lines, if it said anything on standard output. Raises `ConfigurationError`."""
    groups = set[int]()  # of the installer, while it runs
    last, remarks = deque[str](maxlen=SHOWN), False

    def end(number: signal.Signals) -> None:
        for each in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each, number)

    async def read(stream: asyncio.StreamReader | None, *, for_user: bool = False) -> None:
        nonlocal remarks
        assert stream is not None
        with log.open("a") as file:
            async for raw in stream:
                line = raw.decode(errors="replace").rstrip().rpartition("\r")[2]  # of one that was rewritten the last
                file.write(f"{line}\n")
                file.flush()
                last.append(line)
                progress.said(line)
                remarks |= for_user

    with interruptible(lambda: end(signal.SIGKILL)):  # from before the start: a signal at once ends it, too
        start = asyncio.create_subprocess_exec(
            *GATE,
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 20,
            env={"PYTHON": sys.executable, **os.environ},
            start_new_session=True,  # ended below, with all that it has started
        )
        starting = asyncio.create_task(start)
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            groups.add((await starting).pid)
            end(signal.SIGKILL)
            raise
        groups.add(process.pid)
        guard = Guard(None)  # ends them where this process is killed
        guard.tell("+", process.pid)
        _opened(process.stdin)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(read(process.stdout, for_user=True))
                group.create_task(read(process.stderr))
            code = await process.wait()
        finally:
            if process.returncode is None:
                end(signal.SIGTERM)
                await process.wait()
            guard.tell("-", process.pid)
            await guard.aclose()
    if code:
        told = "\n".join(last)
        raise ConfigurationError(f"{Path(argv[1]).name} ended with exit code {code}; the whole log is {log}:\n{told}")
    return [*last][-REMARKS:] if remarks else []


def _opened(gate: asyncio.StreamWriter | None) -> None:
    assert gate is not None
    gate.write(b"\n")
    gate.close()
