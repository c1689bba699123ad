"""System calls of one command by process: a count that does not depend on what else the machine does.

`perf` counts them where it may, without stopping anybody; else `strace` does, which slows all that it counts.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from bench.sandbox.contender import ContenderMissing, Setting
from bench.sandbox.ours import sandbox_of

COMMANDS = 200
WARM_UP = 20
ATTACHED_S = 0.3  # after it was started, a counter counts
Counts = Mapping[str, float]  # "bash true, bash": calls a command


def kind_of(command: bytes) -> str:
    """Which part of a sandbox a process is; empty for those that only hold it."""
    words = command.split(b"\0")
    if b"--kernel" in words:
        return "kernel"
    if words[0] == b"bash":
        return "bash"
    return "server" if b"-I" in words and b"-S" in words else ""


def below(pid: int) -> list[int]:
    """The process with its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += below(int(child))
    return found


def parts(root: int) -> dict[str, int]:
    named = {kind_of(Path(f"/proc/{pid}/cmdline").read_bytes()): pid for pid in below(root)}
    return {name: pid for name, pid in named.items() if name} | {"client": os.getpid()}


def counter(pid: int) -> list[str]:
    """Raises `ContenderMissing` where there is none."""
    if shutil.which("perf"):
        return ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", str(pid)]
    if shutil.which("strace"):
        return ["strace", "-c", "-f", "-U", "calls,name", "-p", str(pid)]
    raise ContenderMissing("neither perf nor strace is installed")


def total(printed: str) -> int:
    """Raises `ContenderMissing` when the counter may not count."""
    for line in printed.splitlines():
        if line.startswith("<not counted>"):
            return 0  # the process did not run
        first = line.replace(",", " ").split()[:1]
        if first and first[0].isdigit() and ("raw_syscalls" in line or line.endswith("total")):
            return int(first[0])
    raise ContenderMissing(f"system calls were not counted: {printed.strip()[:200]}")


async def counted(pid: int, once: Callable[[], Awaitable[object]]) -> float:
    """Calls of a process for each command."""
    process = await asyncio.create_subprocess_exec(*counter(pid), stderr=asyncio.subprocess.PIPE)
    await asyncio.sleep(ATTACHED_S)
    for _ in range(COMMANDS):
        await once()
    process.send_signal(signal.SIGINT)
    return total((await process.communicate())[1].decode()) / COMMANDS


async def system_calls(setting: Setting, kind: str) -> Counts:
    async with sandbox_of(kind, setting, f"calls-{kind}") as sandbox:
        found = {}
        commands: dict[str, Callable[[], Awaitable[object]]] = {
            "bash true": lambda: sandbox.bash("true"),
            "IPython 1+1": lambda: sandbox.ipython("1+1"),
        }
        for quantity, once in commands.items():
            for _ in range(WARM_UP):
                await once()
            for name, pid in parts(sandbox.handle.pid).items():
                found[f"{quantity}, {name}"] = await counted(pid, once)
        return found
