"""A proxy before Redis whose connections fall silent, lose replies, or deliver them late."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

CHUNK = 1 << 20


class Proxy:
    """Passes everything on, until it is told otherwise."""

    def __init__(self, server: Path, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.lost_share = 0.0  # of replies, each with the end of its connection
        self.delay_s = (0.0, 0.0)  # of replies, drawn from this range
        self._links: set[asyncio.Event] = set()

    def fall_silent(self) -> None:
        """Connections that are open now stay open at both ends and pass nothing on, for good."""
        for link in self._links:
            link.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent = asyncio.Event()
        with contextlib.suppress(OSError):
            upstream, downstream = await asyncio.open_unix_connection(self.server)
            self._links.add(silent)
            passing = [
                asyncio.create_task(self._requests(reader, downstream, silent)),
                asyncio.create_task(self._replies(upstream, writer, silent)),
            ]
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._links.discard(silent)
                for task in passing:
                    task.cancel()
                await asyncio.gather(*passing, return_exceptions=True)
                downstream.close()
        writer.close()

    async def _requests(
        self, client: asyncio.StreamReader, server: asyncio.StreamWriter, silent: asyncio.Event
    ) -> None:
        while data := await client.read(CHUNK):
            if not silent.is_set():
                server.write(data)
                await server.drain()

    async def _replies(self, server: asyncio.StreamReader, client: asyncio.StreamWriter, silent: asyncio.Event) -> None:
        while data := await server.read(CHUNK):
            if self.random.random() < self.lost_share:
                return
            if self.delay_s[1]:
                await asyncio.sleep(self.random.uniform(*self.delay_s))
            if not silent.is_set():
                client.write(data)
                await client.drain()
        while silent.is_set():  # the client is not told that the server has gone
            await asyncio.sleep(3600)


@contextlib.asynccontextmanager
async def proxied(server: Path, at: Path, seed: int) -> AsyncIterator[Proxy]:
    """A proxy that listens on the socket `at`."""
    proxy = Proxy(server, seed)
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        task.add_done_callback(connections.discard)
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await proxy.serve(reader, writer)

    listening = await asyncio.start_unix_server(connected, path=at)
    try:
        yield proxy
    finally:
        listening.close()
        ending = list(connections)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
