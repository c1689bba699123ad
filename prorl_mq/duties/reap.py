"""Reaping: jobs whose worker is gone continue elsewhere, or end after too many deaths.

Three ways to be lost, one verb for all: a lease past its time, an entry that was read but never claimed, and a lane
whose node is gone, or has nobody left for its task family. A reaped RUN goes back to INIT, since its sandbox is dirty.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.schema.ids import EntryId
from prorl_mq.schema.items import GroupSpec, Lane, Reap
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store import families, jobs, streams
from prorl_mq.store.jobs import UNKNOWN, Snapshot
from prorl_mq.store.store import BATCH, Store, batched
from prorl_mq.store.workers import silent

AT_ONCE = 256


class Reaping:
    """The reaping loop. It waits one lease after a restart, a fault and a jump of the clock of Redis, so that living
    workers can renew first.
    """

    def __init__(self, store: Store, clock: ServiceClock, *, lease_ms: int) -> None:
        self.store = store
        self.clock = clock
        self.lease_ms = lease_ms
        self._pages: dict[str, str] = {}

    async def turn(self) -> float:
        """Looks for each kind of loss once."""
        wait_s = max(0.05, self.lease_ms / 8000)
        if not await self.clock.calm():
            return wait_s
        nodes, divided = await streams.lanes(self.store), await families.look(self.store)
        every = [*streams.shared(self.store.keys), *nodes, *(self.store.keys.stage(*lane) for lane in divided)]
        await self._overdue()
        for stream in every:
            await self._unclaimed(stream)
        if nodes or divided:
            await self._look_after([*(Lane(Stage.RUN, node) for node in nodes.values()), *divided])
        await self._forget(every)
        return wait_s

    async def _overdue(self) -> None:
        refs = await jobs.leases_over(self.store, limit=AT_ONCE)
        looked = await jobs.read(self.store, refs)
        gone = [ref for ref, job in zip(refs, looked, strict=True) if job is None]
        await jobs.end_leases(self.store, gone)
        await self._take_back([job for job in looked if job], leased=True)

    async def _unclaimed(self, stream: str) -> None:
        """Entries in a consumer's pending list behind which no lease stands. One page a turn."""
        start = self._pages.get(stream, "-")
        page = await streams.read_long_ago(self.store, stream, idle_ms=self.lease_ms, start=start, limit=AT_ONCE)
        self._pages[stream] = f"({page[-1].entry}" if len(page) == AT_ONCE else "-"
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
        await self._take_back(lost, leased=False)

    async def _look_after(self, lanes: Sequence[Lane]) -> None:
        """Evacuates the lanes of nodes where nobody can take their jobs, and retires those that nobody needs."""
        able = await families.abilities(self.store)
        lengths = await families.lengths(self.store, lanes)
        for lane in lanes:
            if lane.node and not able.slots(lane):  # a draining worker has none: it reads no more
                await self._evacuate(lane)
            if lengths[lane]:
                continue
            # A living INIT worker of the node may be about to put a job on the lane.
            if not lane.family and not any(worker.node == lane.node for worker in able.workers):
                await self.store.retire_lane(lane.node or "")
            elif lane.family and not able.divided(lane):
                await self.store.retire_family_lane(lane)

    async def _evacuate(self, lane: Lane) -> None:
        stream = self.store.keys.stage(*lane)
        refs = await streams.first(self.store, stream, limit=AT_ONCE)
        looked = await jobs.read(self.store, refs)
        waiting = [job for job in looked if job and job.state == State.QUEUED and job.stream == stream]
        for chunk in batched(waiting):
            await self.store.reap(Verb.EVACUATE, State.QUEUED, [_again(job, Stage.INIT, UNKNOWN) for job in chunk])

    async def _forget(self, every: Sequence[str]) -> None:
        for name in await silent(self.store, for_ms=self.lease_ms, limit=64):
            await self.store.forget(name, every)

    async def _take_back(self, found: Iterable[Snapshot], *, leased: bool) -> None:
        lost = list(found)
        specs = await jobs.specs(self.store, [job.ref for job in lost])
        sorted_out: dict[State, list[Reap]] = defaultdict(list)
        for job in lost:
            state, item = decide(job, specs.get(job.ref, UNKNOWN), leased=leased)
            sorted_out[state].append(item)
        for state, items in sorted_out.items():
            for chunk in batched(items, BATCH):
                await self.store.reap(Verb.REAP, state, chunk)


class Reaped(NamedTuple):
    """Destination of a lost job."""

    to: State
    item: Reap


def decide(job: Snapshot, spec: GroupSpec, *, leased: bool) -> Reaped:
    """Back to a stage, or to its end: told to stop, or after too many deaths."""
    if job.state == State.STOPPING:
        outcome = Outcome(job.ending or Outcome.CANCELLED)
        return Reaped(State.DONE, _end(job, spec, outcome, ""))
    if leased and job.deaths + 1 >= spec.limits.max_deaths:
        deaths = job.deaths + 1
        message = f"{deaths} workers died or lost their lease under this job, the last one {job.owner} in {job.stage}"
        return Reaped(State.DONE, _end(job, spec, Outcome.INFRA_ERROR, message))
    stage = Stage.INIT if job.stage is Stage.RUN and leased else job.stage
    return Reaped(State.QUEUED, _again(job, stage, spec, leased=leased))


def _again(job: Snapshot, stage: Stage, spec: GroupSpec, *, leased: bool = False) -> Reap:
    return Reap(
        job.ref, job.token, EntryId(job.entry), job.stream, stage, spec.pool, leased=leased, deaths=1 if leased else 0
    )


def _end(job: Snapshot, spec: GroupSpec, outcome: Outcome, message: str) -> Reap:
    record = jobs.ended(job, outcome, message=message, kind="WorkerLost")
    return Reap(job.ref, job.token, job.entry, job.stream, job.stage, spec.pool, outcome, record)
