"""Which entries a worker takes: as many as it has free places, its own lane before the shared stream."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from prorl_mq.clock import monotonic
from prorl_mq.schema.items import Entry
from prorl_mq.schema.messages import Stage
from prorl_mq.store import streams
from prorl_mq.store.connection import ask
from prorl_mq.store.store import Store
from prorl_mq.store.workers import Neighbours
from workers.settings import WorkerSettings

BLOCK_MS = 1_000
LOOK_S = 0.1
COUNT_S = 0.5  # how long the count of the node's RUN slots is good for


class Read(NamedTuple):
    """Entries of one stream."""

    node: str | None
    entries: list[Entry]


class Reading:
    """Reads stage streams on a connection of its own."""

    def __init__(self, settings: WorkerSettings, store: Store, redis: Redis) -> None:
        self._settings = settings
        self._store = store
        self._redis = redis
        stage, keys = settings.stage, store.keys
        self.shared = keys.stage(stage)
        self.lane = keys.stage(stage, settings.node) if stage is Stage.RUN else None
        self._nodes: Mapping[str, str | None] = {self.shared: None, self.lane or "": settings.node}
        self._looked_at = 0.0
        self._allowed = 0
        self._neighbours = Neighbours(store, Stage.RUN, settings.node)
        self._counted_at = -COUNT_S
        self._ready = 0

    async def prepare(self) -> None:
        """Makes the streams and, for RUN, the node's lane."""
        await streams.ensure(self._redis, [self.shared, *([self.lane] if self.lane else [])])
        if self.lane:
            await ask(self._redis, "SADD", self._store.keys.lanes, self._settings.node)

    async def next(self, free: int) -> list[Read]:
        """Entries for at most `free` places; blocks for up to a second when there are none."""
        free = min(free, await self._may_take())
        if free <= 0:
            await asyncio.sleep(LOOK_S)  # nothing tells of bytes leaving EVAL or of RUN slots that join
            return []
        if self.lane is None:
            return self._sorted(await self._read([self.shared], count=free, block_ms=BLOCK_MS))
        found = self._sorted(await self._read([self.lane], count=free, block_ms=None))
        free -= sum(len(read.entries) for read in found)
        if free > 0:
            found += self._sorted(await self._read([self.shared], count=free, block_ms=None))
        if found:
            return found
        # COUNT holds for each stream: with one place left, only one of them may be waited for.
        both = [self.lane, self.shared] if free > 1 else [self.lane]
        block_ms = BLOCK_MS if free > 1 else 50
        return self._sorted(await self._read(both, count=max(1, free // 2), block_ms=block_ms))

    async def _read(self, names: list[str], *, count: int, block_ms: int | None) -> dict[str, list[Entry]]:
        try:
            return await streams.read(self._redis, self._store.name, names, count=count, block_ms=block_ms)
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            await self.prepare()  # the reaper retired the lane of a node that had no worker until now
            return {}

    def _sorted(self, found: Mapping[str, list[Entry]]) -> list[Read]:
        return [Read(self._nodes[stream], entries) for stream, entries in found.items()]

    async def _may_take(self) -> int:
        """INIT follows its node's RUN slots; RUN stops while too many bytes wait for EVAL."""
        if monotonic() - self._looked_at < LOOK_S:
            return self._allowed
        self._allowed = await self._look()
        self._looked_at = monotonic()
        return self._allowed

    async def _look(self) -> int:
        settings, store = self._settings, self._store
        if settings.stage is Stage.EVAL:
            return settings.slots
        if settings.stage is Stage.RUN:
            waiting = await store.read("GET", store.keys.eval_bytes)
            return settings.slots if int(waiting or 0) <= settings.eval_bytes_limit else 0
        if settings.sandbox == "none":
            return settings.slots
        lane = store.keys.stage(Stage.RUN, settings.node)
        if monotonic() - self._counted_at > COUNT_S:
            self._ready = await self._neighbours.slots()
            self._counted_at = monotonic()
        return max(0, 2 * self._ready - int(await store.read("XLEN", lane)))
