"""The program of the workers' package that carries out orders: it has the task families, and sandboxes."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from prorl_mq.errors import ProrlError

T = TypeVar("T", bound=msgspec.Struct)
ANSWER_BYTES: Final = 256 << 20


class ProgramEnded(ProrlError):
    """The program ended without an answer to each order; its own words stand above."""


async def answers(
    what: str,
    orders: Iterable[msgspec.Struct],
    kind: type[T],
    *,
    sandbox: str,
    state_dir: Path,
    more: Sequence[str] = (),
) -> AsyncIterator[T]:
    """The answer to each order, in order. Orders are made as the program takes them. Raises `ProgramEnded`."""
    argv = [sys.executable, "-P", "-m", "workers.rehearsal.orders", what, *more]
    argv += ["--sandbox", sandbox, "--state-dir", str(state_dir)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, limit=ANSWER_BYTES)
    assert process.stdin is not None
    assert process.stdout is not None
    feeding = asyncio.create_task(_feed(process.stdin, iter(orders)))
    try:
        while line := await process.stdout.readline():
            yield msgspec.json.decode(line, type=kind)
        if await process.wait():
            raise ProgramEnded("the program that has the task families has ended early; what it said stands above")
        await feeding
    finally:
        feeding.cancel()
        await asyncio.wait({feeding})
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _feed(stdin: asyncio.StreamWriter, orders: Iterator[msgspec.Struct]) -> None:
    """Raises what making an order raises; the program then answers those that it has, and ends."""
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for order in orders:
                stdin.write(msgspec.json.encode(order) + b"\n")
                await stdin.drain()
    finally:
        stdin.close()
