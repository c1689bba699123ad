"""A proxy between a client and Redis that can lose a reply: the server did the work, the client never hears of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from prorl_mq.store.scripts import script
from prorl_mq.store.server.connection import RedisSettings

CHUNK = 1 << 20


class LossyProxy:
    """Passes everything on, except for the replies that it was told to lose."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._losing: list[bytes] = []
        self.lost = 0

    def lose(self, verb: str, *, times: int = 1) -> None:
        """The next replies to a verb never arrive: their connection breaks after the server has answered."""
        self._losing += [script(verb).sha.encode()] * times

    def lose_command(self, name: str) -> None:
        """The next reply to a plain command never arrives, likewise."""
        self._losing.append(b"\r\n" + name.encode() + b"\r\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_unix_connection(self._server)
        loses = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as both:
                back = both.create_task(self._answer(upstream, writer, loses))
                both.create_task(self._ask(reader, downstream, loses, back))
        except* (ConnectionError, _Broken):
            pass
        finally:
            for end in (writer, downstream):
                end.close()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        loses: asyncio.Event,
        back: "asyncio.Task[None]",
    ) -> None:
        while data := await reader.read(CHUNK):
            for sha in self._losing:
                if sha in data:
                    self._losing.remove(sha)
                    loses.set()
                    break
            server.write(data)
            await server.drain()
        back.cancel()

    async def _answer(self, server: asyncio.StreamReader, client: asyncio.StreamWriter, loses: asyncio.Event) -> None:
        while data := await server.read(CHUNK):
            if loses.is_set():
                self.lost += 1
                raise _Broken
            client.write(data)
            await client.drain()


class _Broken(Exception):
    """This connection ends here."""


@contextlib.asynccontextmanager
async def lossy(settings: RedisSettings, directory: Path) -> AsyncIterator[tuple[LossyProxy, RedisSettings]]:
    """A proxy before the server of `settings`, and the settings to reach it by."""
    proxy = LossyProxy(settings.url.removeprefix("unix://"))
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await proxy.serve(reader, writer)
        finally:
            connections.discard(task)

    path = directory / "proxy.sock"
    listening = await asyncio.start_unix_server(connected, path=path)
    try:
        yield proxy, RedisSettings(url=f"unix://{path}", namespace=settings.namespace)
    finally:
        listening.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
