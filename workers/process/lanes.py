"""The streams that a worker reads: its stage's, its node's, and the lanes of its task families while there are any."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from prorl_mq.clock import monotonic
from prorl_mq.schema.items import Lane
from prorl_mq.schema.messages import Stage
from prorl_mq.store import families, streams, work
from prorl_mq.store.layout.keys import lane_name, lanes_of
from prorl_mq.store.store import Store
from prorl_mq.store.workers import Neighbours
from workers.settings import WorkerSettings
from workers.stages.registry import Registry

LOOK_S: Final = 2.0  # how long a look at the lanes is good for


class Readable(NamedTuple):
    """Streams to read from, those first that are next in turn: `front` ones hold rollouts that have begun, `near` ones
    jobs whose sandbox is on this node.
    """

    front: list[str]
    near: list[str]
    shared: list[str]


class Lanes:
    """The lanes as this worker last saw them, and the task families that it takes."""

    def __init__(self, settings: WorkerSettings, store: Store, registry: Registry) -> None:
        self._settings = settings
        self._store = store
        self._schemas = registry.schemas
        self._with_sandbox = registry.with_sandbox if settings.sandbox != "none" else frozenset[str]()
        self.taken: Collection[str] = frozenset(self._schemas)
        self._neighbours = Neighbours(store, Stage.RUN, settings.node)
        self._own = [store.keys.lane(stream) for stream in streams.shared(store.keys)]
        self._own += lanes_of(settings.node)
        self._looked_at = -LOOK_S
        self._turns = 0

    @property
    def digest(self) -> str:
        """Names what this worker takes; its heartbeat says so."""
        return families.digest_of(self.taken)

    @property
    def shared(self) -> list[str]:
        """The streams of its stage that every deployment has."""
        return [name for name, lane in self.all.items() if not (lane.node or lane.family)]

    @property
    def all(self) -> Mapping[str, Lane]:
        """Every stream that may hold entries of this worker."""
        settings = self._settings
        lanes = (
            lane
            for lane in (*self._own, *sorted(self._store.family_lanes, key=lane_name))
            if lane.stage is settings.stage and lane.node in {None, settings.node}
            if lane.family is None or lane.family in self._schemas
        )
        return {self._store.keys.stage(*lane): lane for lane in lanes}

    def turn(self) -> Readable:
        """The streams to read now. Each is the first of its kind in its turn, so that none is read after all others."""
        self._turns += 1
        readable = {name: lane for name, lane in self.all.items() if lane.family is None or lane.family in self.taken}
        front = [name for name, lane in readable.items() if lane.front]
        near = [name for name, lane in readable.items() if lane.node and not lane.front]
        shared = [name for name, lane in readable.items() if not (lane.node or lane.front)]
        return Readable(*(_rotated(names, self._turns) for names in (front, near, shared)))

    async def enroll(self) -> None:
        """Announces what this worker takes, and makes the lane of its node."""
        lane = self._settings.node if self._settings.stage is Stage.RUN else None
        await work.enroll(self._store, self._schemas, lane, self.taken)

    async def look(self, *, now: bool = False) -> None:
        """Sees which lanes there are, at most every two seconds unless it must be `now`."""
        if not now and monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = monotonic()
        await families.look(self._store)
        taken = await self._takes()
        if taken != self.taken or not await families.known(self._store, families.digest_of(taken)):
            self.taken = taken
            await self.enroll()

    async def _takes(self) -> Collection[str]:
        """INIT makes no sandbox for a family that RUN on its node could not continue with."""
        if self._settings.stage is not Stage.INIT or not self._with_sandbox:
            return self.taken
        digests = await self._neighbours.families()
        if not digests:  # no RUN worker at all: nothing is read before there is one
            return self.taken
        able = await families.abilities(self._store, [])
        near = {family for family in self._with_sandbox for each in digests if able.knows(each, family)}
        return frozenset(self._schemas) - (self._with_sandbox - near)


def _rotated(names: list[str], by: int) -> list[str]:
    at = by % len(names) if names else 0
    return names[at:] + names[:at]
