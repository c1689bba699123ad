"""A network before a server that loses connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

CHUNK = 1 << 16


class Network:
    """A proxy. `cut` breaks every connection, `away` lets none through, `loses` keeps one request's answer back.

    `ends_after` ends the connection that has brought so many bytes of answers more, once.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._writers: set[asyncio.StreamWriter] = set()
        self.away = False
        self.loses = b""  # a request that has this gets no answer, once
        self.ends_after: int | None = None
        self.answered = 0  # bytes
        self.lost = asyncio.Event()
        self.refused = asyncio.Event()
        self.address = ""

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.away:
            self.refused.set()
            writer.transport.abort()
            return
        try:
            upstream, downstream = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, downstream}
        there = asyncio.create_task(self._ask(reader, downstream))
        back = asyncio.create_task(self._answer(upstream, writer))
        await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, downstream):
            end.close()
            self._writers.discard(end)
        await asyncio.wait({there, back})

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
                if self.loses and self.loses in data:
                    self.loses = b""
                    await self.lost.wait()  # the test says when the server has done its work
                    return

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := (await reader.read(CHUNK))[: self.ends_after]:
                self.answered += len(data)
                if self.ends_after is not None:
                    self.ends_after -= len(data)
                writer.write(data)
                await writer.drain()
                if self.ends_after == 0:
                    self.ends_after = None
                    return


@contextlib.asynccontextmanager
async def network(target: str) -> AsyncIterator[Network]:
    proxy = Network(target)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy.connected(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        proxy.lost.set()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
