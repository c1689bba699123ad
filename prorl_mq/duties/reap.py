"""Reaping: jobs whose worker is gone continue elsewhere, or end after too many deaths.

Three ways to be lost, one verb for all: a lease past its time, an entry that was read but never claimed, and a lane
whose node is gone, or has nobody left for its task family. The first two cost the job a death. A reaped RUN continues
where its log of turns ends, in the sandbox that it has; without a log it goes back to INIT, since that is dirty, unless
it was never claimed: without a lease it has not touched it. Deaths before the last logged turn do not count. What has a
log of turns waits in front of what has not begun.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.rules.turns import Turns
from prorl_mq.schema.ids import EntryId
from prorl_mq.schema.items import GroupSpec, Lane, Reap
from prorl_mq.schema.lifecycle import MOST_DEATHS, State, Verb
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store import families, jobs, streams
from prorl_mq.store.families import Abilities
from prorl_mq.store.jobs import UNKNOWN, Snapshot
from prorl_mq.store.store import BATCH, Store, batched
from prorl_mq.store.streams import Pending
from prorl_mq.store.workers import Roster, WorkerStatus, silent

AT_ONCE = 256
LANES = 64  # that have their turn at one look


class Reaping:
    """The reaping loop. It waits one lease after a restart, a fault and a jump of the clock of Redis, so that living
    workers can renew first.
    """

    def __init__(self, store: Store, clock: ServiceClock, *, lease_ms: int) -> None:
        self.store = store
        self.clock = clock
        self.lease_ms = lease_ms
        self._idle_ms = max(1, lease_ms // 2)  # a worker that lives finds what it has overlooked before that
        self._roster = Roster(store)
        self._turns = Turns[str](LANES)
        self._nodes: set[str] = set()  # that had RUN slots at the last turn
        self._claimed: dict[str, str] = {}  # by stream: entries up to there were claimed, or are taken back
        self._epoch = ""

    async def turn(self) -> float:
        """Looks for each kind of loss once; what there is much of, again at once."""
        wait_s = max(0.05, self.lease_ms / 8000)
        if not await self.clock.calm():
            return wait_s
        if self.clock.epoch != self._epoch:  # a restart may have lost the claims that were seen
            self._claimed, self._epoch = {}, self.clock.epoch
        lanes = await streams.lanes(self.store)
        lanes |= {self.store.keys.stage(*lane): lane for lane in await families.look(self.store)}
        shared = streams.shared(self.store.keys)
        able = await families.abilities(self.store, await self._roster.living())
        looked = {stream: lanes[stream] for stream in self._lanes(lanes, able.workers)}
        more = await self._overdue()
        for stream in [*shared, *looked]:
            more |= await self._unclaimed(stream)
        await self._look_after(list(looked.values()), able)
        await self._forget([*shared, *lanes])
        return 0.0 if more else wait_s

    def _lanes(self, lanes: Mapping[str, Lane], workers: Sequence[WorkerStatus]) -> list[str]:
        """Lanes to look at: those whose node has lost its RUN slots since the last turn, and some in turn."""
        nodes = {worker.node for worker in workers if worker.stage is Stage.RUN and worker.slots}
        lost, self._nodes = self._nodes - nodes, nodes
        found = [stream for stream, lane in lanes.items() if lane.node in lost]
        return list(dict.fromkeys([*found, *(stream for stream in self._turns.of(lanes) if stream in lanes)]))

    async def _overdue(self) -> bool:
        """Leases past their time: one page of them; whether there may be another."""
        refs = await jobs.leases_over(self.store, limit=AT_ONCE)
        looked = await jobs.read(self.store, refs)
        gone = [ref for ref, job in zip(refs, looked, strict=True) if job is None]
        await jobs.end_leases(self.store, gone)
        taken = await take_back(self.store, [job for job in looked if job], leased=True)
        return len(refs) == AT_ONCE and taken + len(gone) > 0

    async def _unclaimed(self, stream: str) -> bool:
        """Entries in a consumer's pending list behind which no lease stands: one page; whether there may be another.

        Behind one that was claimed a lease stands from then on, so each is looked at once. One that its worker reads
        again is passed over: it claims it, or dies (`_forget`).
        """
        start = self._claimed.get(stream, "-")
        page = await streams.read_long_ago(self.store, stream, idle_ms=self._idle_ms, start=start, limit=AT_ONCE)
        await self._sort_out(stream, page)
        if page:
            self._claimed[stream] = f"({page[-1].entry}"
        return len(page) == AT_ONCE

    async def _sort_out(self, stream: str, page: Sequence[Pending]) -> None:
        """Takes back what was read and not claimed, and drops entries behind which no job stands."""
        bodies = {each.entry: each.ref for each in page if each.ref is not None}
        looked = dict(zip(bodies.values(), await jobs.read(self.store, list(bodies.values())), strict=True))
        lost, orphans = [], [each.entry for each in page if each.ref is None]
        for entry, ref in bodies.items():
            job = looked[ref]
            if job is None or job.entry != entry or job.stream != stream:
                orphans.append(entry)
            elif job.state == State.QUEUED:
                lost.append(job)
        await streams.drop(self.store, stream, orphans)
        await take_back(self.store, lost, leased=False)

    async def _look_after(self, lanes: Sequence[Lane], able: Abilities) -> None:
        """Evacuates the lanes of nodes where nobody can take their jobs, and retires those that nobody needs."""
        nodes = {worker.node for worker in able.workers}
        # A living INIT worker of the node may be about to put a job on the lane.
        spare = [lane for lane in lanes if (not able.divided(lane) if lane.family else lane.node not in nodes)]
        lengths = await families.lengths(self.store, spare)
        for lane in lanes:
            if lane.node and not self._taken(lane, able):
                await self._evacuate(lane)
        for lane in spare:
            if not lengths[lane] and lane.family:
                await self.store.retire_family_lane(lane)
            elif lane.node and not lane.front and not lengths[lane]:
                await self.store.retire_lane(lane.node)

    def _taken(self, lane: Lane, able: Abilities) -> bool:
        """True if somebody takes its jobs. A draining worker has no slots: it reads no more."""
        return able.slots(lane) > 0 if lane.family else lane.node in self._nodes

    async def _evacuate(self, lane: Lane) -> None:
        stream = self.store.keys.stage(*lane)
        refs = await streams.first(self.store, stream, limit=AT_ONCE)
        looked = await jobs.read(self.store, refs)
        waiting = [job for job in looked if job and job.state == State.QUEUED and job.stream == stream]
        for chunk in batched(waiting):
            items = [_again(job, Stage.INIT, UNKNOWN)._replace(unread=True, deaths=0) for job in chunk]
            await self.store.reap(Verb.EVACUATE, State.QUEUED, items)

    async def _forget(self, every: Sequence[str]) -> None:
        for name in await silent(self.store, for_ms=self.lease_ms, limit=64):
            read = await streams.read_by(self.store, name, every)
            if await self.store.forget(name, read) == "pending":
                for stream in read:
                    await self._sort_out(stream, await streams.left_by(self.store, stream, name, limit=AT_ONCE))


async def take_back(store: Store, found: Iterable[Snapshot], *, leased: bool) -> int:
    """Requeues or ends lost jobs; answers the number of those that were still lost."""
    lost = list(found)
    specs = await jobs.specs(store, [job.ref for job in lost])
    sorted_out: dict[State, list[Reap]] = defaultdict(list)
    for job in lost:
        state, item = decide(job, specs.get(job.ref, UNKNOWN), leased=leased)
        sorted_out[state].append(item)
    answers: list[str] = []
    for state, items in sorted_out.items():
        for chunk in batched(items, BATCH):
            answers += await store.reap(Verb.REAP, state, chunk)
    return sum(answer in {"requeued", "ended"} for answer in answers)


class Reaped(NamedTuple):
    """Destination of a lost job."""

    to: State
    item: Reap


def decide(job: Snapshot, spec: GroupSpec, *, leased: bool) -> Reaped:
    """Back to a stage, or to its end: told to stop, or after too many deaths."""
    if job.state == State.STOPPING:
        outcome = Outcome(job.ending or Outcome.CANCELLED)
        return Reaped(State.DONE, _end(job, spec, outcome, ""))
    deaths = job.deaths + 1
    if deaths - job.progress >= spec.limits.max_deaths or deaths >= max(MOST_DEATHS, spec.limits.max_deaths):
        last = f", the last one {job.owner}" if job.owner else ""
        message = f"{deaths} workers died or lost their lease under this job{last} in {job.stage}"
        return Reaped(State.DONE, _end(job, spec, Outcome.INFRA_ERROR, message))
    restart = job.stage is Stage.RUN and leased and not job.logged
    stage = Stage.INIT if restart else job.stage
    return Reaped(State.QUEUED, _again(job, stage, spec))


def _again(job: Snapshot, stage: Stage, spec: GroupSpec) -> Reap:
    return Reap(job.ref, job.token, EntryId(job.entry), job.stream, stage, spec.pool)


def _end(job: Snapshot, spec: GroupSpec, outcome: Outcome, message: str) -> Reap:
    record = jobs.ended(job, outcome, message=message, kind="WorkerLost")
    return Reap(job.ref, job.token, job.entry, job.stream, job.stage, spec.pool, outcome, record)
