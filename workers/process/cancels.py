"""The cancel stream: every worker follows it, from where it stood when the worker started.

A worker that was away for longer than the stream is kept holds nothing any more, and `renew` repeats the news.
"""

from collections.abc import Callable

from redis.asyncio import Redis

from prorl_mq.schema.ids import JobRef
from prorl_mq.store.connection import ask, patiently
from prorl_mq.store.keys import Keys

BLOCK_MS = 5_000

Told = Callable[[JobRef, str, str], None]


class Cancels:
    """Follows the stream on a connection of its own."""

    def __init__(self, redis: Redis, keys: Keys, told: Told, *, outage_ms: int) -> None:
        self._redis = redis
        self._keys = keys
        self._told = told
        self._outage_ms = outage_ms
        self._after = "0"

    async def prepare(self) -> None:
        """Notes where the stream stands: what lies before this cannot concern this worker."""
        last = await ask(self._redis, "XREVRANGE", self._keys.cancels, "+", "-", "COUNT", 1)
        self._after = last[0][0].decode() if last else "0"

    async def run(self) -> None:
        """Follows for ever."""
        while True:
            reply = await patiently(self._read, outage_ms=self._outage_ms)
            for _, entries in reply or ():
                for entry, fields in entries:
                    ref, token, ending, _owner = fields[1].decode().split(" ")
                    self._told(JobRef(ref), token, ending)
                    self._after = entry.decode()

    async def _read(self) -> list[tuple[bytes, list[tuple[bytes, list[bytes]]]]]:
        reply: list[tuple[bytes, list[tuple[bytes, list[bytes]]]]] = await ask(
            self._redis, "XREAD", "BLOCK", BLOCK_MS, "STREAMS", self._keys.cancels, self._after
        )
        return reply
