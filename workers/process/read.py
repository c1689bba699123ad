"""Which entries a worker takes: as many as it has free places, rollouts that have begun before those that have not, and
its node's lane before the stage's stream.

A read whose answer was lost may have delivered entries, which nobody else reads: after one, what this worker has read
and does not hold is read again, until no read that was under way can deliver any more.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import EntryId
from prorl_mq.schema.items import Entry, Lane
from prorl_mq.schema.messages import Stage
from prorl_mq.store import work
from prorl_mq.store.server.connection import MARGIN_S
from prorl_mq.store.store import Store
from prorl_mq.store.workers import Neighbours
from workers.process.lanes import Lanes
from workers.settings import WorkerSettings

BLOCK_MS = 1_000
LATE_S: Final = 0.05
LOOK_S = 0.1
COUNT_S = 0.5  # how long the count of the node's RUN slots is good for
UNDER_WAY_S: Final = BLOCK_MS / 1000 + MARGIN_S  # how long a read may deliver whose connection is gone
SETS: Final = 2  # of sandboxes to RUN slots of a node, those in use included, that INIT makes
BEGUN_SETS: Final = 3  # the same with rollouts that have lost their node
SPARE: Final = 64  # entries beyond a worker's slots that one look at what it has read shows

Place = tuple[Lane, EntryId]  # of an entry: its stream, its id


class Read(NamedTuple):
    """Entries of one stream. `again`: they were read before, and this worker does not hold them."""

    lane: Lane
    entries: list[Entry]
    again: bool = False


class Room(NamedTuple):
    """Jobs that may be taken now: rollouts that have begun, and any."""

    begun: int
    all: int


class Reading:
    """Reads stage streams. `held` tells which entries have a slot, `takes` how many of the free places may be filled
    while so many jobs are held.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        store: Store,
        reader: work.Reader,
        lanes: Lanes,
        *,
        held: Callable[[], set[Place]],
        takes: Callable[[int, int], int] = lambda free, _held: free,
    ) -> None:
        self._settings = settings
        self._store = store
        self._reader = reader
        self._lanes = lanes
        self._held = held
        self._takes = takes
        self._inherited: set[Place] = set()
        self._broke_at: float | None = None
        self._found_again: set[Place] = set()
        self.read_at = monotonic()
        self._looked_at = 0.0
        self._begun_at = -LOOK_S
        self._called = False  # something came, and nothing of it was read yet
        self._drained = False  # the last read of all streams left nothing there
        self._room = Room(0, 0)
        self._neighbours = Neighbours(store, Stage.RUN, settings.node)
        self._counted_at = -COUNT_S
        self._ready = 0

    async def prepare(self) -> None:
        """Makes the streams and announces what this worker can run. What a worker of the same name has left pending is
        the reaper's: it counts deaths.
        """
        await self._open()
        for stream, lane in self._lanes.all.items():
            left = await work.pending(self._store, stream, idle_ms=0, count=SPARE + self._settings.slots)
            self._inherited |= {(lane, EntryId(entry)) for entry in left}

    async def next(self, free: int, spare: int = 0) -> list[Read]:
        """Entries for at most `free` places; blocks for up to a second when there are none. Rollouts that have begun
        may have `spare` places more; where those are the only ones it does not block.
        """
        await self._lanes.look()
        try:
            found = await self._lost(free) or await self._next(free, spare)
        except BaseException:  # whatever ended the wait, the read may have delivered
            self._broke_at = monotonic()
            raise
        self.read_at = monotonic()
        return found

    async def again(self, limit: int) -> list[Read]:
        """At most `limit` of the entries that this worker has read, and neither holds nor has committed."""
        lanes = self._lanes.all
        found = await self._reader.again(list(lanes), count=SPARE + self._settings.slots)
        passed = self._held() | self._inherited
        reads = []
        for stream, entries in found.items():
            lane = lanes[stream]
            missed = [entry for entry in entries if (lane, entry.entry) not in passed][:limit]
            limit -= len(missed)
            reads += [Read(lane, missed, again=True)] if missed else []
        return reads

    async def overlooked(self, idle_ms: int) -> bool:
        """True if `again` would find any entries that were read at least so long ago."""
        for stream, lane in self._lanes.all.items():
            left = await work.pending(self._store, stream, idle_ms=idle_ms, count=SPARE + self._settings.slots)
            if {(lane, EntryId(entry)) for entry in left} - self._held() - self._inherited:
                return True
        return False

    async def _open(self) -> None:
        await self._reader.open(self._lanes.shared)
        await self._lanes.enroll()
        await self._lanes.look(now=True)

    async def _lost(self, free: int) -> list[Read]:
        if self._broke_at is None or free <= 0:
            return []
        broke_at = self._broke_at
        found = await self.again(free)
        places = {(read.lane, entry.entry) for read in found for entry in read.entries}
        if places and places == self._found_again:  # they cannot be claimed: a duty of the API removes them
            await asyncio.sleep(LOOK_S)
        self._found_again = places
        if len(places) < free and monotonic() - broke_at > UNDER_WAY_S:
            self._broke_at = None
        return found

    async def _next(self, places: int, spare: int) -> list[Read]:
        room, held = await self._may_take(), len(self._held())
        begun = self._takes(min(places + spare, room.begun), held)
        free = self._takes(min(places, room.all), held)
        front, near, shared = self._lanes.turn()
        if begun > max(free, 0) and (found := await self._begun(front, begun)):
            return found
        if free <= 0:
            if places > 0:  # nothing tells of bytes leaving EVAL, RUN slots that join, a rest that ends
                await asyncio.sleep(LOOK_S)
            return []
        names = [*near, *shared, *front]
        if free < len(names) or front or near:
            found = await self._begun(front, free)
            if not found and not (self._drained and free >= len(names)):
                found = await self._at_once(near, shared, free)
            if found:
                self._called = False
                return found
        if free < len(names):
            self._drained = False
            return await self._called_for(names)
        found = await self._read(names, free, block_ms=BLOCK_MS)
        self._drained = all(len(read.entries) < free // len(names) for read in found)
        return found

    async def _begun(self, front: list[str], free: int) -> list[Read]:
        """Entries of the lanes in front; when there was none, not looked for again for a moment."""
        if monotonic() - self._begun_at < LOOK_S:
            return []
        for name in front:
            if found := await self._read([name], free, block_ms=None):
                return found
        self._begun_at = monotonic()
        return []

    async def _at_once(self, near: list[str], shared: list[str], free: int) -> list[Read]:
        """Entries that are there, of no more streams at a time than places are free, since COUNT holds for each."""
        found: list[Read] = []
        for names in (near, shared):
            left = names
            while left and free > 0:
                part, left = left[:free], left[free:]
                came = await self._read(part, free, block_ms=None)
                free -= sum(len(read.entries) for read in came)
                found += came
        return found

    async def _called_for(self, names: list[str]) -> list[Read]:
        """Waits for more streams than places are free, without taking anything. What calls this worker calls all that
        wait so: one that came too late waits for a moment.
        """
        if self._called:
            await asyncio.sleep(LATE_S)
        self._called = await self._reader.news(names, block_ms=BLOCK_MS)
        if self._called:
            self._begun_at = -LOOK_S
        return []

    async def _read(self, names: list[str], free: int, *, block_ms: int | None) -> list[Read]:
        """At most `free` entries of no more streams than that: COUNT holds for each."""
        lanes = self._lanes.all
        found = await self._reader.read(names, count=free // len(names), block_ms=block_ms)
        if found is None:  # a lane that was retired, or a server that lost its streams
            await self._open()
        return [Read(lanes[stream], entries) for stream, entries in (found or {}).items()]

    async def _may_take(self) -> Room:
        """INIT follows its node's RUN slots; RUN stops while too many bytes wait for EVAL."""
        if monotonic() - self._looked_at >= LOOK_S:
            self._room = await self._look()
            self._looked_at = monotonic()
        return self._room

    async def _look(self) -> Room:
        settings, store = self._settings, self._store
        if settings.stage is Stage.RUN and await work.eval_bytes(store) > settings.eval_bytes_limit:
            return Room(0, 0)
        if settings.stage is not Stage.INIT or settings.sandbox == "none":
            return Room(settings.slots, settings.slots)
        if monotonic() - self._counted_at > COUNT_S:
            self._ready = await self._neighbours.slots()
            self._counted_at = monotonic()
        length = await work.lane_length(store, settings.node)
        return Room(max(0, BEGUN_SETS * self._ready - length), max(0, SETS * self._ready - length))
