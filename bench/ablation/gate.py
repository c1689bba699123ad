"""A number of places that processes share: one byte each in a named pipe."""

import asyncio
import os
from pathlib import Path


class Gate:
    """Whoever enters takes a byte, and another process may put it back."""

    def __init__(self, path: str) -> None:
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._turn = asyncio.Lock()

    async def enter(self) -> None:
        async with self._turn:
            while not self._take():
                await self._readable()

    def leave(self) -> None:
        os.write(self._pipe, b".")

    def close(self) -> None:
        os.close(self._pipe)

    def _take(self) -> bool:
        try:
            return os.read(self._pipe, 1) != b""
        except BlockingIOError:
            return False

    async def _readable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pipe, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._pipe)


def make_gate(path: Path, places: int) -> Gate:
    """Its maker keeps it open: a pipe that nobody has open forgets what is in it."""
    os.mkfifo(path)
    gate = Gate(str(path))
    for _ in range(places):
        gate.leave()
    return gate
