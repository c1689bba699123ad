"""Reaping: jobs whose worker is gone go on elsewhere, or end after too many deaths.

Three ways to be lost, one verb for all: a lease past its time, an entry that was read but never claimed, and a lane
whose node is gone. A reaped RUN goes back to INIT, since its sandbox is dirty.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import EntryId, JobRef
from prorl_mq.schema.items import GroupSpec, Reap
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store import fitness, streams
from prorl_mq.store import jobs as snapshots
from prorl_mq.store.jobs import UNKNOWN, Snapshot
from prorl_mq.store.keys import GROUP
from prorl_mq.store.store import BATCH, Store, batched
from prorl_mq.store.workers import living, slots

AT_ONCE = 256
REMEMBERED_MS = 7 * 24 * 3600 * 1000


class Reaping:
    """The reaping loop. It waits one lease after a restart of Redis, so that living workers can renew first."""

    def __init__(self, store: Store, *, lease_ms: int) -> None:
        self.store = store
        self.lease_ms = lease_ms
        self._calm_until = 0.0
        self._pages: dict[str, str] = {}

    async def turn(self) -> float:
        """Looks for each kind of loss once."""
        wait_s = max(0.05, self.lease_ms / 8000)
        if not await self._calm():
            return wait_s
        lanes = await self._lanes()
        every = [*streams.shared(self.store.keys), *lanes]
        await self._overdue()
        for stream in every:
            await self._unclaimed(stream)
        await self._evacuate(lanes)
        await self._forget(every)
        return wait_s

    async def _calm(self) -> bool:
        """False during the first lease after Redis changed its run id."""
        run_id = (await fitness.info(self.store.redis, "server"))["run_id"]
        key = self.store.keys.duty("reap:server")
        known = await self.store.read("GET", key)
        if known is None or known.decode() != run_id:
            await self.store.put(key, run_id.encode(), ttl_ms=REMEMBERED_MS)
            if known is not None:
                self._calm_until = monotonic() + self.lease_ms / 1000
        return monotonic() >= self._calm_until

    async def _overdue(self) -> None:
        now = await self.store.now_ms()
        found = await self.store.read("ZRANGEBYSCORE", self.store.keys.leases, "-inf", now, "LIMIT", 0, AT_ONCE)
        refs = [JobRef(ref.decode()) for ref in found]
        looked = await snapshots.jobs(self.store, refs)
        gone = [ref for ref, job in zip(refs, looked, strict=True) if job is None]
        await snapshots.end_leases(self.store, gone)
        await self._take_back([job for job in looked if job], leased=True)

    async def _unclaimed(self, stream: str) -> None:
        """Entries in a consumer's pending list behind which no lease stands. One page a turn."""
        start = self._pages.get(stream, "-")
        rows = await self.store.read("XPENDING", stream, GROUP, "IDLE", self.lease_ms, start, "+", AT_ONCE)
        self._pages[stream] = f"({rows[-1][0].decode()}" if len(rows) == AT_ONCE else "-"
        entries = await self.store.read_many([("XRANGE", stream, row[0], row[0]) for row in rows])
        found = [(row[0].decode(), body[0][1][1]) for row, body in zip(rows, entries, strict=True) if body]
        bodies = {entry: JobRef(ref.decode()) for entry, ref in found}
        looked = dict(zip(bodies.values(), await snapshots.jobs(self.store, list(bodies.values())), strict=True))
        lost, orphans = [], [EntryId(row[0].decode()) for row in rows if row[0].decode() not in bodies]
        for entry, ref in bodies.items():
            job = looked[ref]
            if job is None or job.entry != entry or job.stream != stream:
                orphans.append(EntryId(entry))
            elif job.state == State.QUEUED:
                lost.append(job)
        await streams.drop(self.store, stream, orphans)
        await self._take_back(lost, leased=False)

    async def _lanes(self) -> dict[str, str]:
        """Lane stream → node."""
        nodes = [node.decode() for node in await self.store.read("SMEMBERS", self.store.keys.lanes)]
        return {self.store.keys.stage(Stage.RUN, node): node for node in nodes}

    async def _evacuate(self, lanes: dict[str, str]) -> None:
        if not lanes:
            return
        workers = await living(self.store)
        for stream, node in lanes.items():
            if slots(workers, Stage.RUN, node):  # a draining worker has none: it reads no more
                continue
            rows = await self.store.read("XRANGE", stream, "-", "+", "COUNT", AT_ONCE)
            refs = [JobRef(fields[1].decode()) for _, fields in rows]
            looked = await snapshots.jobs(self.store, refs)
            waiting = [job for job in looked if job and job.state == State.QUEUED and job.stream == stream]
            for chunk in batched(waiting):
                await self.store.reap(Verb.EVACUATE, State.QUEUED, [_again(job, Stage.INIT, UNKNOWN) for job in chunk])
            # A living INIT worker of the node may be about to put a job on the lane.
            if not rows and not any(worker.node == node for worker in workers):
                await self.store.retire_lane(node)

    async def _forget(self, every: Sequence[str]) -> None:
        overdue = await self.store.now_ms() - self.lease_ms
        for name in await self.store.read("ZRANGEBYSCORE", self.store.keys.workers, "-inf", overdue, "LIMIT", 0, 64):
            await self.store.forget(name.decode(), every)

    async def _take_back(self, jobs: Iterable[Snapshot], *, leased: bool) -> None:
        lost = list(jobs)
        specs = await snapshots.specs(self.store, [job.ref for job in lost])
        sorted_out: dict[State, list[Reap]] = defaultdict(list)
        for job in lost:
            state, item = decide(job, specs.get(job.ref, UNKNOWN), leased=leased)
            sorted_out[state].append(item)
        for state, items in sorted_out.items():
            for chunk in batched(items, BATCH):
                await self.store.reap(Verb.REAP, state, chunk)


class Reaped(NamedTuple):
    """Where a lost job goes."""

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
    record = snapshots.ended(job, outcome, message=message, kind="WorkerLost")
    return Reap(job.ref, job.token, job.entry, job.stream, job.stage, spec.pool, outcome, record)
