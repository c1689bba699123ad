"""Connections to Redis, with every time-out and retry chosen here.

The client library's own retries re-send a write whose answer was lost, and its default time-out cuts a blocking read
short. Ours: no retry inside the client; each verb can be repeated, so `patiently` repeats it from outside.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
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
from prorl_mq.store import rendezvous
from prorl_mq.store.rendezvous import Place

T = TypeVar("T")

OUTAGES = (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, OSError)


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where Redis is. `url` is redis://, rediss:// or unix://; empty: `rendezvous` names the file that says so."""

    url: str = ""
    rendezvous: Path | None = None
    namespace: str = "prorl"
    username: str | None = None
    password: str | None = None
    outage_ms: int = 120_000  # how long a process waits for Redis before it gives up
    answer_s: float = 10.0  # how long one answer may take

    @property
    def place(self) -> Place:
        """The address as it is known now. Raises `ConfigurationError` if a rendezvous cannot be read."""
        if self.url or self.rendezvous is None:
            return Place(url=self.url, username=self.username, secret=self.password)
        return rendezvous.known(self.rendezvous)

    @property
    def followed(self) -> Path | None:
        """The file that is read again before each connect."""
        return None if self.url else self.rendezvous


def entry(place: Place) -> dict[str, str]:
    """What redis-py wants besides the address."""
    given = {"username": place.username, "password": place.secret, "ssl_ca_data": place.ca}
    return {name: value for name, value in given.items() if value}


async def located(settings: RedisSettings) -> None:
    """Waits for the rendezvous, if there is one. Raises `RedisUnavailable` after `outage_ms`."""
    if settings.followed is not None:
        await rendezvous.appeared(settings.followed, within_ms=settings.outage_ms)


def connect(settings: RedisSettings, *, blocking: bool = False, connections: int = 8) -> "Redis":
    """A client without retries of its own. A blocking one waits for its answer without limit."""
    return factory(settings, blocking, connections)


def _pooled(settings: RedisSettings, blocking: bool, connections: int) -> "Redis":
    place = settings.place
    pool = BlockingConnectionPool.from_url(
        place.url,
        protocol=2,
        max_connections=connections,
        timeout=None,
        socket_timeout=None if blocking else settings.answer_s,
        socket_connect_timeout=5.0,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        **entry(place),
    )
    pool.connection_class = _ours(pool.connection_class)
    if settings.followed is not None:
        pool.connection_class = rendezvous.following(pool.connection_class, settings.followed)
    client: Redis = Redis(connection_pool=pool, retry=Retry(NoBackoff(), 0))
    client.auto_close_connection_pool = True  # a pool that was passed in is else left open by `aclose`
    client.response_callbacks.clear()  # every reply is read in its plain RESP2 shape
    return client


factory = _pooled  # what makes every client; a simulator replaces it


def _ours(kind: Any) -> Any:
    """The connection class; it closes without complaint, and packs commands in C where hiredis is installed."""

    class OurConnection(kind):  # type: ignore[misc]
        async def disconnect(self, *args: Any, **options: Any) -> None:
            """A busy peer may take longer to end TLS than the client waits for it: that is nobody's failure."""
            writer = self._writer
            try:
                await super().disconnect(*args, **options)
            except TimeoutError:
                if writer is not None:
                    writer.transport.abort()

    return _packing_fast(OurConnection)


def _packing_fast(kind: Any) -> Any:
    """With commands packed in C: a script call for 64 jobs has hundreds of parts."""
    try:
        from hiredis import pack_command
    except ImportError:
        return kind

    class FastConnection(kind):  # type: ignore[misc]
        def pack_command(self, *args: Any) -> list[bytes]:
            return [pack_command(args)]

    return FastConnection


def _full_disk(error: ResponseError) -> bool:
    """Redis takes no writes while it cannot store them: nothing was done, and the disk may have room again."""
    return str(error).startswith("MISCONF")


async def cancellable(attempt: Callable[[], Awaitable[T]]) -> T:
    """Raises a cancellation that the client swallowed: it sends with `wait_for`, which does so in Python 3.11."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    answer = await attempt()
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
    return answer


async def ask(redis: Redis, *command: str | bytes | float) -> Any:
    """One command, sent once. Raises what the client raises, and every cancellation."""
    execute: Callable[..., Awaitable[Any]] = redis.execute_command
    return await cancellable(lambda: execute(*command))


async def patiently(attempt: Callable[[], Awaitable[T]], *, outage_ms: int) -> T:
    """Repeats what may be repeated until Redis answers. Raises `RedisUnavailable` after `outage_ms`."""
    give_up = monotonic() + outage_ms / 1000
    wait_s = 0.02
    while True:
        try:
            return await attempt()
        except AuthenticationError as error:
            raise ConfigurationError(
                f"Redis refuses the user or its password: {error}; check the credentials"
            ) from error
        except (*OUTAGES, ResponseError) as error:
            if isinstance(error, ResponseError) and not isinstance(error, OUTAGES) and not _full_disk(error):
                raise
            left = give_up - monotonic()
            if left <= 0:
                message = (
                    f"Redis has not answered for {outage_ms / 1000:.0f} s ({error}); start it or check its address"
                )
                raise RedisUnavailable(message) from error
            await asyncio.sleep(min(left, wait_s * (0.5 + chance.fraction())))
            wait_s = min(wait_s * 2, 2.0)
