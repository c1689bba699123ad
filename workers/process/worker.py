"""A worker process: reads, claims, performs, commits, N jobs at a time, and drains when told to.

Invariant: a job is in `slots` from its claim until its commit is answered, the fence refuses it, or its lease is lost.
"""

import asyncio
import logging
import os
from collections import OrderedDict
from itertools import zip_longest
from typing import Any, NamedTuple

from redis.asyncio import Redis

from prorl_mq.clock import monotonic, wall_ms
from prorl_mq.process.tracing import Tracing
from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.ids import GroupRef, JobRef, Token, group_of
from prorl_mq.schema.items import Entry, GroupSpec, Held
from prorl_mq.schema.messages import Outcome
from prorl_mq.schema.messages import Stage as StageName
from prorl_mq.store import schemas
from prorl_mq.store.connection import connect, patiently
from prorl_mq.store.keys import Keys
from prorl_mq.store.store import Store
from workers import metrics
from workers.process.cancels import Cancels
from workers.process.commits import Commits
from workers.process.heartbeat import Heartbeat
from workers.process.read import Read, Reading
from workers.process.slots import Slot, Slots
from workers.settings import WorkerSettings
from workers.stages import failures, scope
from workers.stages.registry import Registry
from workers.stages.stage import Stage, carried
from workers.stages.time_limit import TimeLimit
from workers.stages.work import Move, Work

log = logging.getLogger("workers")

SPECS_KEPT = 4096
STOP_READING_S = 2.0  # how long a draining worker waits for the answer to its last read
BUDGET_GRACE_MS = 10_000  # a lease outlives its stage's budget by this, then it ends whoever renews it


class Known(NamedTuple):
    """A group's spec, and the time in Redis that it was read at, or a little earlier."""

    read_ms: int
    spec: GroupSpec
    sealed: bytes  # packed; only EVAL has it


class Worker:
    """One process of one stage."""

    def __init__(
        self, settings: WorkerSettings, registry: Registry, redis: Redis, tracing: Tracing | None = None
    ) -> None:
        self.settings = settings
        self.tracing = tracing
        self.registry = registry
        self.keys = Keys(settings.redis.namespace)
        self.store = Store(redis, self.keys, name=settings.worker_name, outage_ms=settings.redis.outage_ms)
        self.slots = Slots(settings.slots)
        self.commits = Commits(self.store, self.slots, self._refused)
        self._draining = asyncio.Event()
        self._specs: OrderedDict[GroupRef, Known] = OrderedDict()
        self._started_ms = wall_ms()
        self._limit = TimeLimit(settings.ends_at_ms)

    def drain(self) -> None:
        """Stops reading; what runs may finish within the grace time. Idempotent."""
        self._draining.set()

    async def run(self, stage: Stage) -> None:
        """Works until drained. On return nothing is held, except what an unreachable Redis could not take back."""
        settings = self.settings
        blocking = connect(settings.redis, blocking=True, connections=1)
        following = connect(settings.redis, blocking=True, connections=1)
        reading = Reading(settings, self.store, blocking)
        cancels = Cancels(following, self.keys, self.slots.told, outage_ms=settings.redis.outage_ms)
        heartbeat = self._heartbeat()
        try:
            await patiently(lambda: self._prepare(reading, cancels), outage_ms=settings.redis.outage_ms)
            await asyncio.to_thread(heartbeat.start)
            async with asyncio.TaskGroup() as group:
                committing = group.create_task(self.commits.run(), name="commits")
                following_cancels = group.create_task(cancels.run(), name="cancels")
                await self._read_on(reading, stage, group)
                await self._let_finish()
                committing.cancel()
                following_cancels.cancel()
        finally:
            await asyncio.to_thread(heartbeat.stop)
            await blocking.aclose()
            await following.aclose()
        await self._sign_off()

    async def _prepare(self, reading: Reading, cancels: Cancels) -> None:
        await schemas.announce(self.store, self.registry.schemas)
        await reading.prepare()
        await cancels.prepare()

    async def _read_on(self, reading: Reading, stage: Stage, group: asyncio.TaskGroup) -> None:
        stop = group.create_task(self._draining.wait(), name="draining")
        while not stop.done():
            room = asyncio.ensure_future(self.slots.room())
            if not await _first(room, stop):
                return
            if self._over():
                self.drain()
                return
            free = room.result()
            outage_ms = self.settings.redis.outage_ms
            read = asyncio.ensure_future(patiently(lambda: reading.next(free), outage_ms=outage_ms))  # noqa: B023
            # A read is not cut short while it may still bring entries: they would wait for the reaper.
            if not await _first(read, stop, patience_s=STOP_READING_S):
                return
            for found in read.result():
                await self._claim(found, stage, group)

    def _over(self) -> bool:
        """Too late for another job, or idle for too long."""
        idle_exit_ms = self.settings.idle_exit_ms
        idle = idle_exit_ms is not None and self.slots.idle_s * 1000 > idle_exit_ms
        if idle or self._limit.too_late(wall_ms()):
            log.warning("draining: %s", "idle" if idle else "the time that is left is too short for another job")
            return True
        return False

    async def _claim(self, read: Read, stage: Stage, group: asyncio.TaskGroup) -> None:
        groups = await self._known_of(read.entries)
        name, node = self.settings.stage, read.node
        known = [entry for entry in read.entries if group_of(entry.ref) in groups]
        unknown = [entry for entry in read.entries if group_of(entry.ref) not in groups]
        budgets = [_budget_ms(groups[group_of(entry.ref)].spec, name) for entry in known]
        # An entry without a spec belongs to a group that is settled: its claim answers so, and removes it.
        entries: list[Entry] = [*known, *unknown]
        claims = await self.store.claim(name, node, entries, [*budgets, *(1 for _ in unknown)], self.settings.lease_ms)
        for entry, claim in zip(entries, claims, strict=True):
            if not claim.granted or group_of(entry.ref) not in groups:
                continue
            _, spec, sealed = groups[group_of(entry.ref)]
            held = Held(entry.ref, claim.token, entry.entry, name, node, spec.pool)
            slot = self.slots.take(Work(held=held, claim=claim, spec=spec, sealed=sealed))
            slot.task = group.create_task(self._perform(slot, stage))

    async def _perform(self, slot: Slot, stage: Stage) -> None:
        began = monotonic()
        try:
            with scope.entered(slot.work, self.settings.stage, self.store.name, self.tracing):
                move = await stage.perform(slot.work)
            metrics.stage_seconds.labels(self.settings.stage).observe(monotonic() - began)
        except asyncio.CancelledError:
            slot.closing = True
            await self._stopped(slot)
            return
        slot.closing = True
        self._limit.took(monotonic() - began)
        if slot.lost:
            await self._undo(move)
            self.slots.give(slot)
        elif slot.ending is not None:
            await self._undo(move)
            await self._confirm(slot)
        else:
            self.commits.put(slot, move)

    async def _stopped(self, slot: Slot) -> None:
        """The task was cancelled and everything it ran is dead."""
        if slot.lost:
            self.slots.give(slot)
        elif slot.ending is not None:
            await self._confirm(slot)
        else:
            self.commits.put(slot, failures.given_back(slot.work))

    async def _confirm(self, slot: Slot) -> None:
        work, ending = slot.work, Outcome(slot.ending or Outcome.CANCELLED)
        stopped_ms = round((monotonic() - slot.told_at) * 1000, 3)
        record = work.record(ending, carried(work), stopped_ms=stopped_ms)
        metrics.cancel_stop_seconds.observe(stopped_ms / 1000)
        answer = await self.store.confirm(work.held, encode(record), f"stopped_ms={stopped_ms}")
        log.info("stopped job=%s ending=%s stopped_ms=%s answer=%s", work.held.ref, ending, stopped_ms, answer)
        self.slots.give(slot)

    async def _refused(self, slot: Slot, move: Move, answer: str) -> None:
        """The fence refused a commit: this attempt's sandbox goes; a job told to stop is confirmed."""
        metrics.refused.labels(answer).inc()
        await self._undo(move)
        if answer in {"stale", "gone"}:
            self.slots.give(slot)
            return
        slot.ending = slot.ending or await self._ending(slot.work.held.ref)
        slot.told_at = slot.told_at or monotonic()
        await self._confirm(slot)

    async def _ending(self, ref: JobRef) -> str:
        found = await self.store.read("HGET", self.keys.job(ref), "ending")
        return found.decode() if found else Outcome.CANCELLED

    async def _undo(self, move: Move) -> None:
        if move.undo is not None:
            await move.undo()

    async def _known_of(self, entries: list[Entry]) -> dict[GroupRef, Known]:
        """What is known of the groups behind entries. A group's id may come again with another body, once it was
        acknowledged: so a spec serves only entries that were on their stream when it was read.
        """
        newest: dict[GroupRef, int] = {}
        for entry in entries:
            ref = group_of(entry.ref)
            newest[ref] = max(newest.get(ref, 0), _added_ms(entry))
        now_ms = max(newest.values(), default=0)
        missing = [ref for ref, added in newest.items() if ref not in self._specs or self._specs[ref].read_ms < added]
        if missing:
            sealed = [self.keys.sealed(ref) for ref in missing] if self.settings.stage is StageName.EVAL else []
            found = await self.store.read("MGET", *(self.keys.open(ref) for ref in missing), *sealed)
            for ref, packed, secret in zip_longest(missing, found[: len(missing)], found[len(missing) :]):
                self._specs.pop(ref, None)
                if packed is not None:
                    self._specs[ref] = Known(now_ms, decode(packed, GroupSpec), secret or b"")
        groups = {ref: self._specs[ref] for ref in newest if ref in self._specs}
        while len(self._specs) > SPECS_KEPT:
            self._specs.popitem(last=False)
        return groups

    async def _let_finish(self) -> None:
        """The grace time, then everything that still runs is stopped and given back."""
        try:
            async with asyncio.timeout(self.settings.grace_ms / 1000):
                await self.slots.empty()
        except TimeoutError:
            for slot in list(self.slots.held.values()):
                slot.stop()
            await self.slots.empty()

    async def _sign_off(self) -> None:
        """Removes the worker's names: nobody has to wait for its lease to find out that it is gone."""
        await self.store.read("ZREM", self.keys.workers, self.store.name)
        await self.store.read("UNLINK", self.keys.worker(self.store.name))
        streams = [self.keys.stage(self.settings.stage)]
        if self.settings.stage is StageName.RUN:
            streams.append(self.keys.stage(StageName.RUN, self.settings.node))
        await self.store.forget(self.store.name, streams)

    def _heartbeat(self) -> Heartbeat:
        loop = asyncio.get_running_loop()

        def about() -> dict[str, str | int]:
            settings = self.settings
            return {
                "stage": settings.stage, "node": settings.node,
                "slots": 0 if self._draining.is_set() else settings.slots, "busy": len(self.slots.held),
                "pid": os.getpid(), "started_ms": self._started_ms, "sandbox": settings.sandbox,
            }  # fmt: skip

        def answered(changed: list[tuple[JobRef, Token, str]]) -> None:
            loop.call_soon_threadsafe(self._renewed, changed)

        return Heartbeat(
            self.settings.redis,
            self.store.name,
            lease_ms=self.settings.lease_ms,
            about=about,
            leases=self.slots.leases,
            answered=answered,
        )

    def _renewed(self, changed: list[tuple[JobRef, Token, str]]) -> None:
        """What the heartbeat learned. `lost` may only mean that the commit is under way: the fence knows."""
        for ref, token, said in changed:
            slot = self.slots.held.get(ref)
            if slot is None or slot.work.held.token != token:
                continue
            if said != "lost":
                self.slots.told(ref, token, said)
            elif not slot.closing:
                log.warning("lease lost job=%s", ref)
                metrics.leases_lost.inc()
                self.slots.lose(ref, token)


def _budget_ms(spec: GroupSpec, stage: StageName) -> int:
    limits = spec.limits
    budget = {StageName.INIT: limits.init_ms, StageName.RUN: limits.run_ms, StageName.EVAL: limits.eval_ms}[stage]
    return budget + BUDGET_GRACE_MS


def _added_ms(entry: Entry) -> int:
    """Redis's time when an entry was added, which its id holds."""
    return int(entry.entry.partition("-")[0])


async def _first(wanted: "asyncio.Future[Any]", stop: "asyncio.Future[Any]", *, patience_s: float = 0.0) -> bool:
    """Waits for what is wanted, but for not much longer than `stop`; false if it did not come, and is cancelled."""
    await asyncio.wait({wanted, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not wanted.done() and patience_s:
        await asyncio.wait({wanted}, timeout=patience_s)
    if wanted.done():
        return True
    wanted.cancel()
    await asyncio.gather(wanted, return_exceptions=True)
    return False
