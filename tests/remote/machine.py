"""A sandbox server of real sandboxes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import web

from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.lifetime.sweep import sweep
from sandbox.protocol import SandboxProvider
from sandbox.remote.access import ServerAccess
from sandbox.remote.messages import PROTOCOL, Hello
from sandbox.serving.routes import SandboxRoutes
from sandbox.serving.served import ServedSandboxes

Kind = Callable[[str, Path], SandboxProvider]
TENANTS = {"one": "token-of-the-first-0", "two": "token-of-the-second-0"}


def token_file(directory: Path, name: str = "one", token: str = "") -> Path:
    file = directory / f"token-{name}"
    file.touch(mode=0o600)
    file.write_text(token or TENANTS[name])
    return file


class Machine:
    """A server in this process. `address` is where it listens."""

    def __init__(self, directory: Path, most: int = 16, kind: Kind = BubblewrapProvider) -> None:
        self.directory = directory
        self.state_dir = directory / "machine"
        self.provider = kind("machine-1", self.state_dir)
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
    hello = Hello(protocol=PROTOCOL, name="machine-1", kind=machine.provider.kind)
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
