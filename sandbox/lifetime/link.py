"""Bytes to and from a sandbox's socket, which the event loop watches as long as it is open."""

import asyncio
import socket
from typing import Final

from sandbox.host.process import resolve

PIECE_BYTES: Final = 64 << 10  # the C library maps and unmaps memory for every larger one
HELD_BYTES: Final = 1 << 20  # received and not taken: then reading rests


class Link:
    """One end of a connected stream socket, which it owns. For one task at a time, on the event loop that made it."""

    def __init__(self, connected: socket.socket) -> None:
        self.data = bytearray()  # received; whoever takes from it removes that
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._error: OSError | None = None
        self._ended = False
        self._reading = False
        self._more: asyncio.Future[None] | None = None
        self._read_on()

    async def more(self) -> None:
        """Waits until `data` has grown. Raises `EOFError` when the other end has closed, and the socket's `OSError`."""
        if self._ended:
            raise self._error or EOFError
        self._read_on()
        self._more = self._loop.create_future()
        try:
            await self._more
        finally:
            self._more = None

    async def send(self, data: bytes) -> None:
        """Raises the socket's `OSError`. What came before that can still be received."""
        sent = self._try_send(data)
        while sent < len(data):
            await self._writable()
            sent += self._try_send(memoryview(data)[sent:])

    @property
    def ended(self) -> bool:
        """The other end has closed, and all that came before was received."""
        return self._ended

    def close(self) -> None:
        """Idempotent. For the task that uses the link: nobody who waits is woken."""
        if self._reading and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
        self._reading = False
        self._socket.close()

    def _read_on(self) -> None:
        if not self._reading:
            self._loop.add_reader(self._socket, self._receive)
            self._reading = True

    def _rest(self) -> None:
        self._loop.remove_reader(self._socket)
        self._reading = False

    def _receive(self) -> None:
        try:
            piece = self._socket.recv(PIECE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._error, piece = error, b""
        self.data += piece
        if not piece:
            self._ended = True
        if self._ended or len(self.data) > HELD_BYTES:
            self._rest()
        self._wake()

    def _wake(self) -> None:
        if self._more is None or self._more.done():
            return
        if self._ended:
            self._more.set_exception(self._error or EOFError())
        else:
            self._more.set_result(None)

    def _try_send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    async def _writable(self) -> None:
        ready = self._loop.create_future()
        self._loop.add_writer(self._socket, resolve, ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(self._socket)
