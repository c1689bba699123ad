"""One uvicorn server on one socket: it prints its address, and answers waiting requests when it ends."""

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import uvicorn
from starlette.applications import Starlette

from api.app import create_app
from api.compat.app import create_app as create_compat_app
from api.config import ApiSettings, Durability
from api.service import Service
from api.tokens import own_token
from prorl_mq import local_token
from prorl_mq.errors import ConfigurationError, ServerUnfit
from prorl_mq.process.connections import DrainingServer, TimedProtocol, raise_file_limit
from prorl_mq.process.tracing import from_environment
from prorl_mq.rules import reach
from prorl_mq.schema.ids import DEFAULT_TENANT
from prorl_mq.servers import in_cluster
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server import fitness, replicas
from prorl_mq.store.server.connection import connect, located, patiently
from prorl_mq.store.store import Store

BACKLOG: Final = 2048
DRAIN_S: Final = 20  # how long answers under way may take after SIGTERM


async def serve(settings: ApiSettings) -> bool:
    """Serves until SIGTERM or SIGINT; false if it never came up.

    Raises `ConfigurationError`, `ServerUnfit` or `RedisUnavailable` before it listens.
    """
    tracing = from_environment(os.environ, "prorl-api")
    await _fit(settings)
    raise_file_limit()
    settings, own = guarded_by_own_token(settings)
    with listening(settings) as (sock, address):
        settings = msgspec.structs.replace(settings, port=_port(sock, settings.port))
        if settings.compat is None:
            app = create_app(settings, tracing=tracing)
        else:
            app = create_compat_app(settings, tracing=tracing)
        config = uvicorn.Config(
            app,
            http=TimedProtocol,
            ws="none",
            log_config=None,  # its lines go where ours do, in the same form
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # a caller is its connection's address, whatever its headers say
            backlog=BACKLOG,
            timeout_graceful_shutdown=DRAIN_S,
        )
        server = Server(config, address, _entry(settings, address, own))
        await server.serve([sock])
    return server.started


class Server(DrainingServer):
    """Prints its address once it takes requests; on its end it wakes the requests that wait."""

    def __init__(self, config: uvicorn.Config, address: str, entry: str = "") -> None:
        super().__init__(config)
        self.address = address
        self.entry = entry

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(f"listening on {self.address}", *filter(None, [self.entry]), sep="\n", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if isinstance(self.config.app, Starlette):
            service: Service = self.config.app.state.service
            service.drain()
        await super().shutdown(sockets)


def guarded_by_own_token(settings: ApiSettings) -> tuple[ApiSettings, str]:
    """On loopback, where the operator gave no tokens: one of the service's own, whose holder is the operator."""
    if settings.state_dir is None:
        return settings, ""
    token, digest = own_token(settings.state_dir)
    tenant = settings.compat.tenant if settings.compat else DEFAULT_TENANT
    backends = {tenant: (reach.ANY,), **settings.backends}
    return msgspec.structs.replace(settings, tokens={tenant: digest}, backends=backends), token


def _entry(settings: ApiSettings, address: str, token: str) -> str:
    """The way in for its user. The token is for a terminal, not for a log that others may read."""
    if settings.state_dir is None:
        return ""
    place = f"callers need the token in {settings.state_dir / local_token.FILE}, or --open"
    if not sys.stdout.isatty():
        return place
    return f"{place}; enter at {address}{'/token/' if settings.compat else '/ui/#token='}{token}"


@contextlib.contextmanager
def listening(settings: ApiSettings) -> Iterator[tuple[socket.socket, str]]:
    """A socket and its URL. A Unix socket is for its owner alone, and goes when the context ends."""
    if settings.uds is None:
        with _tcp(settings.host, settings.port) as sock:
            host, port = sock.getsockname()[:2]
            yield sock, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return
    path = Path(settings.uds)
    with _unix(path) as sock:
        try:
            yield sock, f"unix://{path}"
        finally:
            path.unlink(missing_ok=True)


def _port(sock: socket.socket, given: int) -> int:
    """The port that was taken where any would do."""
    return given if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])


def _tcp(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        raise ConfigurationError(f"{host}:{port} cannot be listened on: {error.strerror}") from None
    return sock


def _unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists():
            _remove_abandoned(path, sock)
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        sock.close()
        raise ConfigurationError(f"{path} cannot be listened on: {error.strerror or error}") from None
    return sock


def _remove_abandoned(path: Path, sock: socket.socket) -> None:
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise OSError("it is a file, not a socket")
    with (
        contextlib.closing(socket.socket(sock.family, sock.type)) as probe,
        contextlib.suppress(ConnectionRefusedError),
    ):
        probe.connect(str(path))
        raise OSError("another process listens there")
    path.unlink()


async def _fit(settings: ApiSettings) -> None:
    await located(settings.redis)
    redis = connect(settings.redis)
    outage_ms = settings.redis.outage_ms
    store = Store(redis, Keys(settings.redis.namespace), name=settings.name, outage_ms=outage_ms)
    try:
        for warning in await patiently(lambda: fitness.start_up(redis), outage_ms=outage_ms):
            print(f"warning: {warning}", flush=True)
        match settings.durability:
            case Durability.REPLICATED | Durability.REPLICATED_SYNCED if in_cluster(settings.redis.named.url):
                raise ServerUnfit(
                    f"--durability {settings.durability} is refused: replicas of a cluster form no chain, and any of "
                    "them may be promoted; use redis+sentinel:// where acknowledged work must outlive a primary"
                )
            case Durability.REPLICATED | Durability.REPLICATED_SYNCED:
                seen = await patiently(lambda: replicas.look_well(store, settings.redis), outage_ms=outage_ms)
                found, mode = replicas.faults(*seen), await patiently(lambda: replicas.mode(store), outage_ms=outage_ms)
                if found and not mode.acks:
                    raise ServerUnfit(f"--durability {settings.durability} is refused: " + "; ".join(found))
                for fault in found:  # a start while a replica is away: answers wait for it
                    print(f"warning: {fault}", flush=True)
                synced = settings.durability is Durability.REPLICATED_SYNCED
                if synced and not (found and mode.synced):  # a server that is told to write could not now
                    await patiently(lambda: fitness.syncs(redis, store.keys, replicas=1), outage_ms=outage_ms)
                await replicas.switch(store, 1, synced=synced)
            case Durability.SYNCED:
                await patiently(lambda: fitness.syncs(redis, store.keys), outage_ms=outage_ms)
                await replicas.switch(store, 0)
            case Durability.STORED:
                await replicas.switch(store, 0)
            case None:
                pass
    finally:
        await redis.aclose()
