"""A sandbox server of real sandboxes, and a network before it that loses connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.lifetime.sweep import sweep
from sandbox.remote.access import ServerAccess
from sandbox.remote.messages import PROTOCOL, Hello
from sandbox.serving.routes import SandboxRoutes
from sandbox.serving.served import ServedSandboxes

TENANTS = {"one": "token-of-the-first-0", "two": "token-of-the-second-0"}
CHUNK = 1 << 16


def token_file(directory: Path, name: str = "one", token: str = "") -> Path:
    file = directory / f"token-{name}"
    file.touch(mode=0o600)
    file.write_text(token or TENANTS[name])
    return file


class Machine:
    """A server in this process. `address` is where it listens."""

    def __init__(self, directory: Path, most: int = 16) -> None:
        self.directory = directory
        self.state_dir = directory / "machine"
        self.provider = BubblewrapProvider("machine-1", self.state_dir)
        self.served = ServedSandboxes(self.provider, self.state_dir, most)
        self.address = ""

    def access(self, tenant: str = "one", url: str = "") -> ServerAccess:
        return ServerAccess(url=url or self.address, token_file=token_file(self.directory, tenant))


@contextlib.asynccontextmanager
async def answering(app: web.Application) -> AsyncIterator[str]:
    """An application on a port of its own; its address."""
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def serving(machine: Machine) -> AsyncIterator[Machine]:
    """Ends with every sandbox."""
    await machine.served.open()
    hello = Hello(protocol=PROTOCOL, name="machine-1", kind="bubblewrap")
    routes = SandboxRoutes(machine.served, hello, TENANTS, machine.directory / "images")
    ending = asyncio.create_task(machine.served.run())
    try:
        async with answering(routes.app()) as machine.address:
            yield machine
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        await machine.served.aclose()
        await sweep(machine.state_dir, lambda _: False)
        await machine.provider.aclose()


class Network:
    """A proxy. `cut` breaks every connection, `away` lets none through, `loses` keeps one request's answer back."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._writers: set[asyncio.StreamWriter] = set()
        self.away = False
        self.loses = b""  # a request that has this gets no answer, once
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
        there = asyncio.create_task(self._pass(reader, downstream, watch=True))
        back = asyncio.create_task(self._pass(upstream, writer, watch=False))
        await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, downstream):
            end.close()
            self._writers.discard(end)
        await asyncio.wait({there, back})

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, watch: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
                if watch and self.loses and self.loses in data:
                    self.loses = b""
                    await self.lost.wait()  # the test says when the server has done its work
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
