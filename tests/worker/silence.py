"""A TCP proxy before Redis that can fall silent: it accepts, acknowledges, and passes nothing on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec

from prorl_mq.store.server.connection import RedisSettings
from tests.support.proxy import CHUNK


@dataclass
class _Link:
    dead: bool


class SilentProxy:
    """A connection that was open while it was silent stays dead, as behind a tunnel that was rebuilt; Redis still holds
    its end of it, and answers reads that wait there.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._silent = False
        self._swallowing: bytes | None = None
        self._links: list[_Link] = []

    def fall_silent(self) -> None:
        self._silent = True
        for link in self._links:
            link.dead = True

    def heal(self) -> None:
        """New connections work."""
        self._silent = False

    def swallow(self, text: bytes) -> None:
        """The first reply that holds this text never arrives, nor anything else on its connection."""
        self._swallowing = text

    @property
    def swallowed(self) -> bool:
        return self._swallowing is None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(dead=self._silent)
        self._links.append(link)
        upstream, downstream = await asyncio.open_unix_connection(self._server)
        both = [
            asyncio.create_task(self._pass_on(reader, downstream, link, replies=False)),
            asyncio.create_task(self._pass_on(upstream, writer, link, replies=True)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            writer.close()
            downstream.close()

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, link: _Link, *, replies: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(CHUNK):
                if replies and self._swallowing and self._swallowing in data:
                    self._swallowing, link.dead = None, True
                if not link.dead:
                    target.write(data)
                    await target.drain()
        while link.dead:  # nobody tells Redis that its client has gone
            await asyncio.sleep(3600)


@contextlib.asynccontextmanager
async def silent(settings: RedisSettings) -> AsyncIterator[tuple[SilentProxy, RedisSettings]]:
    """A proxy before the server of `settings`, and the settings to reach it by."""
    proxy = SilentProxy(settings.url.removeprefix("unix://"))
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        task.add_done_callback(connections.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await proxy.serve(reader, writer)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy, msgspec.structs.replace(settings, url=f"redis://127.0.0.1:{port}/0")
    finally:
        listening.close()
        ending = list(connections)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
