"""Connections to Redis, with every time-out and retry chosen here.

The client library's own retries re-send a write whose answer was lost, and its one time-out cuts a blocking read
short. Ours: no retry inside the client; each verb can be repeated, so `patiently` repeats it from outside. Every read
has a deadline, since a tunnel or a load balancer acknowledges TCP for a peer that is dead: a blocking one may take
`MARGIN_S` longer than it blocks, any other `answer_s`. Past it the connection is dropped; the next call makes another.
"""

import asyncio
import builtins
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)

from prorl_mq import chance
from prorl_mq.clock import monotonic
from prorl_mq.errors import ConfigurationError, RedisUnavailable
from prorl_mq.servers import servers
from prorl_mq.store.server import kinds, rendezvous
from prorl_mq.store.server.primary import entry
from prorl_mq.store.server.rendezvous import Place

log = logging.getLogger("prorl_mq.redis")
T = TypeVar("T")
RedisClient: TypeAlias = Redis  # for code that hands a connection on

# The client wraps every error of a socket; another OSError, of a full disk or a missing file, is no outage of Redis.
OUTAGES = (
    ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, builtins.ConnectionError, builtins.TimeoutError,
)  # fmt: skip
# First words of errors that end by themselves, or with another address: a server that loads, has another role than it
# had, no longer owns the slot, has lost its replicas, its disk or its cluster, or ended a blocking read. Nothing was
# done.
PASSING: Final = frozenset({
    "ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS", "READONLY", "TRYAGAIN",
    "UNBLOCKED",
})  # fmt: skip
ELECTION_S: Final = 4.0  # how long an answer may take where another server may be the primary by then
MARGIN_S: Final = 3.0  # how much later than asked for a blocking read may end; how long a greeting may take
SAID_FROM_S: Final = 0.5  # how long the pause between two attempts is when the log has a line of the outage
GREETINGS: Final = frozenset({"AUTH", "CLIENT", "HELLO", "SELECT"})
LIVENESS: Final = {  # of TCP, for a peer that is gone with its host: seconds idle, seconds between probes, probes
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 25_000,  # milliseconds that sent data may stay unacknowledged
}


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Address of Redis. `url` is as `prorl_mq.servers` says; empty: `rendezvous` names the file that says so."""

    url: str = ""
    rendezvous: Path | None = None
    namespace: str = "prorl"
    username: str | None = None
    password: str | None = None
    outage_ms: int = 120_000  # how long a process waits for Redis before it gives up
    answer_s: float = 10.0  # how long one answer may take
    kept: bool = False  # connections are not ended for what they hold of Redis's memory (CLIENT NO-EVICT)

    @property
    def named(self) -> Place:
        """The address as it is known now. Raises `ConfigurationError` if a rendezvous cannot be read."""
        if self.url or self.rendezvous is None:
            return Place(url=self.url, username=self.username, secret=self.password)
        return rendezvous.known(self.rendezvous)

    @property
    def followed(self) -> Path | None:
        """The file that is read again before each connect."""
        return None if self.url else self.rendezvous

    @property
    def moves(self) -> bool:
        """True if the address is looked for before each connect."""
        return self.followed is not None or servers(self.url) is not None


def kept_alive(place: Place) -> dict[str, Any]:
    """Arguments of redis-py by which the kernel notices a host that is gone."""
    if place.url.startswith("unix:"):
        return {}
    return {"socket_keepalive": True, "socket_keepalive_options": LIVENESS}


async def located(settings: RedisSettings) -> None:
    """Waits for the rendezvous, if there is one. Raises `RedisUnavailable` after `outage_ms`."""
    if settings.followed is not None:
        await rendezvous.appeared(settings.followed, within_ms=settings.outage_ms)


def connect(settings: RedisSettings, *, connections: int = 8, wired: "bool | Literal['short']" = False) -> "Redis":
    """A client without retries of its own. One that reads blockingly needs a connection for each such read.

    `wired`: calls that do not block share one connection (`wire`), which is far cheaper; a long reply holds up those
    behind it, unless only `short` ones do. It needs the extra `service`.
    """
    return factory(settings, connections, wired=wired)


def _made(settings: RedisSettings, connections: int, *, wired: "bool | Literal['short']") -> "Redis":
    place = settings.named
    answer_s = settings.answer_s if servers(place.url) is None else min(settings.answer_s, ELECTION_S)
    pool = BlockingConnectionPool.from_url(
        rendezvous.first(place),
        protocol=2,
        max_connections=connections,
        timeout=None,
        socket_timeout=answer_s,
        socket_connect_timeout=5.0,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        **kept_alive(place),
        **entry(place),
    )
    pool.connection_class = _ours(pool.connection_class)
    if settings.kept:
        pool.connection_class = kinds.kept(pool.connection_class)
    if settings.moves:
        kind = pool.connection_class
        pool.connection_class = rendezvous.following(kind, place, settings.followed, settings.namespace)
    plain = None if wired else Redis(connection_pool=pool, retry=Retry(NoBackoff(), 0))
    client = plain or _wired(pool, answer_s, short=wired == "short")
    client.auto_close_connection_pool = True  # a pool that was passed in is else left open by `aclose`
    client.response_callbacks.clear()  # every reply is read in its plain RESP2 shape
    return client


def _wired(pool: BlockingConnectionPool, answer_s: float, *, short: bool) -> "Redis":
    from prorl_mq.store.server.wire import WiredRedis  # needs the parser in C, which a trainer may lack

    return WiredRedis(pool, passing=passing, blocks=deadline, answer_s=answer_s, short=short)


factory = _made  # what makes every client; a simulator replaces it


def _ours(kind: Any) -> Any:
    """The connection class: a deadline for each command, and no complaint at its end."""

    class OurConnection(kind):  # type: ignore[misc]
        socket_timeout: float | None
        _deadline_s: float | None = None  # of the answer that is read next; None: `socket_timeout`
        _wrong = False  # its server is not the right one: the next command connects again, perhaps to another address

        async def _connect(self) -> None:
            self._wrong = False
            await super()._connect()

        async def send_command(self, *args: Any, **options: Any) -> None:
            deadline_s = deadline(*args)
            await self._leave_wrong()
            await super().send_command(*args, **options)
            self._deadline_s = deadline_s

        async def send_packed_command(self, *args: Any, **options: Any) -> None:
            self._deadline_s = None
            await self._leave_wrong()
            await super().send_packed_command(*args, **options)

        async def read_response(self, *args: Any, **options: Any) -> Any:
            usual_s = self.socket_timeout  # a `timeout` would answer None at its end, and leave the reply for the next
            self.socket_timeout = self._deadline_s or usual_s
            try:
                return await super().read_response(*args, **options)
            except ResponseError as error:
                self._wrong = self._wrong or passing(error)  # other replies may be under way to the same caller
                raise
            finally:
                self.socket_timeout = usual_s

        def left(self) -> bool:
            """True if its server is no longer the one to ask."""
            return False

        async def _leave_wrong(self) -> None:
            if self._wrong or (self.is_connected and self.left()):
                await self.disconnect(nowait=True)

    return kinds.packing_fast(kinds.ending_quietly(OurConnection))


def deadline(*command: Any) -> float | None:
    """Seconds within which a command's answer must have come; None for the client's usual time.

    Raises `ValueError` for a read that would block without limit.

    >>> deadline("XREAD", "BLOCK", 1000, "STREAMS", "s", "$"), deadline("BZMPOP", 0.5, 1, "b", "MIN"), deadline("GET")
    (4.0, 3.5, None)
    """
    name = command[0]
    if name in GREETINGS:
        return MARGIN_S
    if name == "BZMPOP":
        block_s = float(command[1])
    elif name in {"WAIT", "WAITAOF"}:
        block_s = float(command[-1]) / 1000
    elif name in {"XREAD", "XREADGROUP"} and "BLOCK" in command:
        block_s = float(command[command.index("BLOCK") + 1]) / 1000
    else:
        return None
    if block_s <= 0:
        raise ValueError(f"{name} would block without limit: give it a time, and repeat it")
    return block_s + MARGIN_S


def passing(error: Exception) -> bool:
    """True for an error that ends by itself: nothing was done, and the command may be sent again."""
    if not isinstance(error, ResponseError):
        return isinstance(error, OUTAGES)
    word = getattr(error, "status_code", None) or str(error).partition(" ")[0]
    return word in PASSING or isinstance(error, OUTAGES)


async def cancellable(attempt: Callable[[], Awaitable[T]]) -> T:
    """Raises a cancellation that the client swallowed: it sends with `wait_for`, which does so in Python 3.11."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await attempt()
    except GeneratorExit:  # dropped with its loop: nobody is there to be cancelled
        task = None
        raise
    finally:
        if task and task.cancelling() > before:  # also where the client raised something in place of it
            raise asyncio.CancelledError


async def ask(redis: Redis, *command: str | bytes | float) -> Any:
    """One command, sent once. Raises what the client raises, and every cancellation."""
    execute: Callable[..., Awaitable[Any]] = redis.execute_command
    return await _once(redis, lambda: execute(*command))


async def _once(redis: Redis, attempt: Callable[[], Awaitable[T]]) -> T:
    try:
        return await cancellable(attempt)
    except (*OUTAGES, ResponseError) as error:  # idle connections are probably as dead: each would cost its deadline
        if passing(error):
            await redis.connection_pool.disconnect(inuse_connections=False)
        raise


async def ask_many(redis: Redis, commands: Sequence[Sequence[Any]], *, at_once: bool = False) -> list[Any]:
    """Several commands in one round trip, sent once; with `at_once` nothing happens between them. Raises as `ask` does,
    the first error of any of them.
    """
    wired: Any = redis if hasattr(redis, "many") else None
    if wired is not None and all(deadline(*command) is None and wired.shares(command) for command in commands):
        return await cancellable(lambda: wired.many(commands, at_once=at_once))

    async def attempt() -> list[Any]:
        pipeline = redis.pipeline(transaction=at_once)
        for command in commands:
            pipeline.execute_command(*command)
        return list(await pipeline.execute())

    return await cancellable(attempt)


async def ask_on_one(redis: Redis, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Several commands one after the other on one connection, in one round trip, sent once: a WAIT among them is for
    what stands before it. Each reply as it came, also an error. Raises what has ended the connection.
    """

    async def attempt() -> list[Any]:
        pipeline = redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return list(await pipeline.execute(raise_on_error=False))

    return await _once(redis, attempt)


def _lasting(error: Exception, outage_ms: int) -> str:
    """The fault that has lasted for so long, and what ends it."""
    long = f"for {outage_ms / 1000:.0f} s"
    if not isinstance(error, ResponseError):
        return f"Redis has not answered {long} ({error}); start it or check its address"
    said, then = str(error), "its log says more"
    if isinstance(error, AskError):  # MOVED is one: so answers a node whose cluster is not in the address
        said = f"slot {error}"
        then = "it is a node of a cluster: give redis+cluster://HOST:PORT, or wait while a slot moves"
    elif said.startswith("NOREPLICAS"):
        then = "let a replica follow it again"
    return f"Redis has refused this {long} ({said}); {then}"


async def patiently(attempt: Callable[[], Awaitable[T]], *, outage_ms: int) -> T:
    """Repeats what may be repeated until Redis answers. Raises `RedisUnavailable` after `outage_ms`."""
    give_up = monotonic() + outage_ms / 1000
    wait_s = 0.02
    said = False
    while True:
        try:
            return await attempt()
        except AuthenticationError as error:
            raise ConfigurationError(
                f"Redis refuses the user or its password: {error}; check the credentials"
            ) from error
        except (*OUTAGES, ResponseError) as error:
            if not passing(error):
                raise
            left = give_up - monotonic()
            if left <= 0:
                raise RedisUnavailable(_lasting(error, outage_ms)) from error
            if wait_s > SAID_FROM_S and not said:
                said = True
                how = "refuses this" if isinstance(error, ResponseError) else "does not answer"
                log.warning("Redis %s, it is asked again for %.0f s at most: %s", how, left, error)
            await asyncio.sleep(min(left, wait_s * (0.5 + chance.fraction())))
            wait_s = min(wait_s * 2, 2.0)
