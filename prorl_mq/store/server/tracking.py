"""Reads whose changes Redis tells: over one connection with CLIENT TRACKING, so that nobody needs to ask again.

Redis notes the keys that are read over the connection and sends their names when they change, whoever changes them. The
answer to a read comes before the news of a change behind it. A connection that is lost, or a server that refuses to
track (the rules of an older user, a proxy), makes nothing wrong: `certain` is false then, and readers ask again as
often as they would have.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

import hiredis
from redis.asyncio import BlockingConnectionPool
from redis.exceptions import ResponseError

from prorl_mq.store.server.connection import OUTAGES, RedisClient, RedisSettings, connect, deadline, passing
from prorl_mq.store.server.wire import Wire, WiredRedis

log = logging.getLogger("prorl_mq.redis")
ALIVE_S: Final = 1.0  # how long a connection that says nothing may take to answer
Told = Callable[[list[bytes] | None], None]  # gets names of keys that have changed; None: any may have


class TrackedWire(Wire):
    """A connection that also brings news."""

    tracks = False
    told: Told = staticmethod(lambda _: None)

    async def track(self, within_s: float) -> None:
        """Asks for news. Raises `ConnectionError` where the connection is lost."""
        try:
            await self.send(("HELLO", 3), within_s)
            await self.send(("CLIENT", "TRACKING", "ON"), within_s)
        except ResponseError as error:
            if passing(error):
                raise
            log.info("Redis does not tell changes, they are looked for: %s", error)
            return
        self.tracks = True
        self.told(None)  # of what was read over an earlier connection nothing is told here

    def _answer(self, reply: Any) -> None:
        if isinstance(reply, hiredis.PushNotification):
            if reply[0] == b"invalidate":
                self.told(reply[1])
            return
        super()._answer(_flat(reply) if isinstance(reply, dict) else reply)

    def _end(self, kind: type[Exception], why: str) -> None:
        super()._end(kind, why)
        if self.tracks:
            self.tracks = False
            self.told(None)


class TrackedRedis(WiredRedis):
    """A client for reads alone. `told` gets the names of keys that were read over it and have changed."""

    told: Told = staticmethod(lambda _: None)

    @property
    def certain(self) -> bool:
        """True if all changes since a read have been told, but for those of the last moments."""
        return isinstance(self._wire, TrackedWire) and self._wire.tracks and self._wire.open

    async def listen(self) -> None:
        """Connects where there is no connection. One that cannot be made is the next read's to say."""
        if self._wire is None or not self._wire.takes():
            with contextlib.suppress(*OUTAGES):
                await self._connected()

    async def alive(self) -> None:
        """Ends a connection whose peer is gone without a word. One that was never made, or is lost, is no matter."""
        wire = self._wire
        if wire is not None and wire.takes():
            with contextlib.suppress(*OUTAGES):
                await wire.send(("PING",), ALIVE_S)

    async def _make(self) -> Wire:
        made: Any = self.connection_pool.make_connection()
        await made.connect()
        writer, made._writer, made._reader = made._writer, None, None  # noqa: SLF001 - from now on not that client's
        wire = TrackedWire(writer, self._passing, made.left)
        wire.told = self.told
        try:
            await wire.track(self._answer_s)
        except (asyncio.CancelledError, Exception):
            wire.close()
            raise
        return wire


def tracked(settings: RedisSettings) -> TrackedRedis:
    """A client that connects at its first read."""
    plain: RedisClient = connect(settings, connections=1)
    pool = plain.connection_pool
    assert isinstance(pool, BlockingConnectionPool)
    answer_s: float = pool.connection_kwargs["socket_timeout"]
    client = TrackedRedis(pool, passing=passing, blocks=deadline, answer_s=answer_s)
    client.auto_close_connection_pool = True
    client.response_callbacks.clear()
    return client


def _flat(reply: dict[Any, Any]) -> list[Any]:
    """A map as its fields and values in turn, as in the protocol before."""
    return [each for pair in reply.items() for each in pair]
