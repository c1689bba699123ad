"""The program of a sandbox server: listens until SIGTERM or SIGINT, and leaves its sandboxes alive."""

import asyncio
import contextlib
import fcntl
import logging
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from sandbox.errors import SandboxUnavailable
from sandbox.isolators import local
from sandbox.protocol import SandboxProvider
from sandbox.remote.access import is_loopback
from sandbox.remote.messages import PROTOCOL, REQUEST_S, Hello
from sandbox.serving.routes import SandboxRoutes
from sandbox.serving.served import ServedSandboxes
from sandbox.serving.tenants import tenants_in

log = logging.getLogger(__name__)


class Serving(NamedTuple):
    """Options of a server."""

    listen: str  # HOST:PORT; port 0 is one that is free
    state_dir: Path
    tokens: Path
    tls: Path | None  # a certificate with its chain and key; None: a proxy or a loopback address
    images: Path  # of those that clients may name
    most: int


async def serve(provider: SandboxProvider, given: Serving) -> None:
    """Prints its address once it answers. Raises `SandboxUnavailable` for what it cannot be started with."""
    tenants, host, port = tenants_in(given.tokens), *_address(given.listen)
    secure = None if given.tls is None else _secured(given.tls)
    if secure is None and not is_loopback(host):
        log.warning("--listen %s without --tls: whoever sees its network can read the tokens", given.listen)
    if provider.kind == local.KIND:
        log.warning("sandboxes of kind local isolate nothing: whoever has a token can do here what this user can")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with _alone(given.state_dir):
        served = ServedSandboxes(provider, given.state_dir, given.most)
        await served.open()
        hello = Hello(protocol=PROTOCOL, name=provider.node, kind=provider.kind)
        runner = web.AppRunner(
            SandboxRoutes(served, hello, tenants, given.images.resolve()).app(),
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=REQUEST_S,  # also of a connection that sends no whole request
        )
        await runner.setup()
        ending = asyncio.create_task(served.run(), name="ending")
        try:
            await web.TCPSite(runner, host, port, ssl_context=secure).start()
            bound = runner.addresses[0][1]
            shown = f"[{host}]" if ":" in host else host
            print(f"serving {provider.kind} sandboxes on http{'s' if secure else ''}://{shown}:{bound}", flush=True)
            await stop.wait()
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            await runner.cleanup()
            await served.aclose()


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise SandboxUnavailable(f"--listen {listen}: write HOST:PORT, such as 127.0.0.1:7443")
    return host.strip("[]"), int(port)


def _secured(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(path)
    except (OSError, ssl.SSLError) as error:
        raise SandboxUnavailable(f"--tls {path}: no certificate with its key in PEM: {error}") from None
    return context


@contextlib.contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Two servers of one directory would destroy each other's sandboxes."""
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / "sandbox-server.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SandboxUnavailable(f"{state_dir} has a sandbox server already: stop it, or use another one") from None
        yield
