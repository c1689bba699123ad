"""A worker process: reads, claims, performs, commits, N jobs at a time, and drains when told to.

Invariant: a job is in `slots` from its start until its commit is answered, the fence refuses it, or its lease is lost.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, Final

from prorl_mq.clock import monotonic, wall_ms
from prorl_mq.process import tokenizers
from prorl_mq.process.tracing import Tracing
from prorl_mq.schema.ids import JobRef, Token
from prorl_mq.schema.messages import Stage
from prorl_mq.store import work
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.payloads.place import payloads_of
from prorl_mq.store.server.connection import RedisClient, connect, patiently
from prorl_mq.store.store import Store
from workers import metrics
from workers.inference.waits import Waits
from workers.node.starts import NodeGuard
from workers.postponed import SharedBreakers
from workers.process.claims import Claims
from workers.process.commits import Commits
from workers.process.heartbeat import Heartbeat
from workers.process.jobs import Jobs
from workers.process.lanes import Lanes
from workers.process.leasing import Leasing
from workers.process.lifetime import TimeLimit
from workers.process.read import Place, Read, Reading
from workers.process.repairs import Repairs
from workers.process.slots import Slots
from workers.process.turn_logs import TurnLogs
from workers.settings import WorkerSettings
from workers.stages.registry import Registry
from workers.stages.stage import StageRunner

log = logging.getLogger("workers")

SPARE_S: Final = 0.5  # between two looks, of a full worker, for rollouts that may have a spare place
STOP_READING_S = 2.0  # how long a draining worker waits for the answer to its last read


class Worker:
    """One process of one stage. `draining` is called when a drain begins."""

    def __init__(
        self,
        settings: WorkerSettings,
        registry: Registry,
        redis: RedisClient,
        tracing: Tracing | None = None,
        draining: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.registry = registry
        self.keys = Keys(settings.redis.namespace)
        outage_ms, payloads = settings.redis.outage_ms, payloads_of(settings.redis)
        self.store = Store(redis, self.keys, name=settings.worker_name, outage_ms=outage_ms, payloads=payloads)
        self._taking: set[Place] = set()
        self.slots = Slots(settings.slots)
        self.commits = Commits(self.store)
        self._limit = TimeLimit(settings.ends_at_ms)
        self.turn_logs = TurnLogs(self.store)
        self.leasing = Leasing(self.store, self.slots, lease_ms=settings.lease_ms)
        self.jobs = Jobs(
            settings.stage,
            self.store,
            self.slots,
            self.commits,
            self.leasing,
            took=self._limit.took,
            grace_s=settings.grace_ms / 1000,
            tracing=tracing,
        )
        self.lanes = Lanes(settings, self.store, registry)
        self.claims = Claims(settings, self.store, self.lanes, self.leasing.hold)
        self.waits = Waits()
        self.node = NodeGuard(settings.node, self.waits)
        self.shared = SharedBreakers(self.store)
        self._draining = asyncio.Event()
        self._on_draining = draining
        self.started_ms = wall_ms()

    def drain(self) -> None:
        """Stops reading. Rollouts whose turns are logged end at their next turn, for other workers to continue with;
        what else runs may finish within the grace time. Idempotent.
        """
        if not self._draining.is_set():
            self._draining.set()
            self.jobs.hand_on()
            self._on_draining()

    async def run(self, stage: StageRunner) -> None:
        """Works until drained. On return nothing is held, except what did not stop and what an unreachable Redis could
        not take back: their leases end them.
        """
        redis = self.settings.redis
        blocking, following = (connect(redis, connections=1, wired=True) for _ in range(2))
        reader = work.Reader(blocking, self.store.name)
        reading = Reading(self.settings, self.store, reader, self.lanes, held=self._entries, takes=self.node.takes)
        repairs = Repairs(self.slots, self.jobs, reading, self.claims, self.settings)
        cancels = work.Cancels(following, self.keys, outage_ms=redis.outage_ms)
        heartbeat = self._heartbeat(reading, repairs)
        try:
            await patiently(reading.prepare, outage_ms=redis.outage_ms)
            await patiently(cancels.prepare, outage_ms=redis.outage_ms)
            await asyncio.to_thread(heartbeat.start)
            async with asyncio.TaskGroup() as group:
                loops = [
                    group.create_task(self.commits.run(), name="commits"),
                    group.create_task(self.leasing.run(), name="leasing"),
                    group.create_task(self.turn_logs.run(), name="turn logs"),
                    group.create_task(self._follow(cancels), name="cancels"),
                    group.create_task(repairs.run(stage), name="repairs"),
                ]
                await self._read_on(reading, stage, group)
                await repairs.compare(stage, idle_ms=0)  # what the last read may have delivered is not left behind
                await self.jobs.drain()
                for loop in loops:
                    loop.cancel()
        finally:
            await self.jobs.leave()
            await asyncio.to_thread(heartbeat.stop)
            await blocking.aclose()
            await following.aclose()
        await work.sign_off(self.store, list(self.lanes.all))

    async def _follow(self, cancels: work.Cancels) -> None:
        while True:
            for told in await cancels.next():
                if told.owner in {"", self.store.name}:
                    self.slots.told(told.ref, told.token, told.ending)

    async def _read_on(self, reading: Reading, stage: StageRunner, group: asyncio.TaskGroup) -> None:
        stop = group.create_task(self._draining.wait(), name="draining")
        while not stop.done():
            spare = self._spare
            if self.slots.free <= 0:
                room = asyncio.ensure_future(self.slots.room())
                await _first(room, stop, within_s=SPARE_S if spare else None)
                if stop.done():
                    return
                reading.read_at = monotonic()
            if self._over():
                self.drain()
                return
            free = self.slots.free
            outage_ms = self.settings.redis.outage_ms
            read = asyncio.ensure_future(patiently(lambda: reading.next(free, spare), outage_ms=outage_ms))  # noqa: B023
            # A read is not cut short while it may still bring entries: they would wait for the reaper.
            if not await _first(read, stop, patience_s=STOP_READING_S):
                return
            self._taking = {(found.lane, entry.entry) for found in read.result() for entry in found.entries}
            try:
                for found in read.result():
                    await self._take(found, stage)
            finally:
                self._taking = set()

    def _entries(self) -> set[Place]:
        """Entries that are held, or were read and are about to be: to read these again would perform them twice."""
        return self.slots.entries() | self._taking

    @property
    def _spare(self) -> int:
        return self.settings.spare_slots if self.settings.stage is Stage.RUN else 0

    def _over(self) -> bool:
        """Too late for another job, or idle for too long."""
        idle_exit_ms = self.settings.idle_exit_ms
        idle = idle_exit_ms is not None and self.slots.idle_s * 1000 > idle_exit_ms
        if idle or self._limit.too_late(wall_ms()):
            log.warning("draining: %s", "idle" if idle else "the time that is left is too short for another job")
            return True
        return False

    async def _take(self, read: Read, stage: StageRunner) -> None:
        """A lease that was given before to entries that are read again has no holder: its job is given back."""
        works, leased = ([], await self.claims.claim(read)) if read.again else await self.claims.begin(read)
        for job in works:
            self.jobs.start(job, stage)
        for claimed in leased:
            if claimed.known:
                self.jobs.hand_back(claimed.work)
            else:
                self.jobs.start(claimed.work, stage, leased=True)

    def _heartbeat(self, reading: Reading, repairs: Repairs) -> Heartbeat:
        loop, settings = asyncio.get_running_loop(), self.settings
        sight = tokenizers.sight(os.environ) if settings.stage is Stage.RUN else ""

        def about() -> dict[str, str | int]:
            draining = self._draining.is_set()
            return {
                "stage": settings.stage, "node": settings.node,
                "slots": 0 if draining else settings.slots, "busy": len(self.slots.held),
                "pid": os.getpid(), "started_ms": self.started_ms, "sandbox": settings.sandbox,
                "limits": settings.limits,
                "families": self.lanes.digest,
                "free": 0 if draining or self.node.shut else max(0, self.slots.free), "read_ms": _age_ms(reading),
                "waits": self.waits.text, "sight": sight,
            }  # fmt: skip

        def answered(said: list[tuple[JobRef, Token, str]]) -> None:
            loop.call_soon_threadsafe(self._renewed, said)
            loop.call_soon_threadsafe(repairs.beaten)

        metrics.free_slots.set_function(lambda: max(0, self.slots.free))
        metrics.read_age_seconds.set_function(lambda: _age_ms(reading) / 1000)
        made = Heartbeat(
            settings.redis,
            self.store.name,
            lease_ms=settings.lease_ms,
            about=about,
            leases=self.slots.leases,
            answered=answered,
        )
        self.waits.changed = made.soon
        return made

    def _renewed(self, said: list[tuple[JobRef, Token, str]]) -> None:
        """Acts on the answers to a heartbeat. `lost` may only mean that the commit is under way: the fence knows."""
        for ref, token, word in said:
            slot = self.slots.held.get((ref, token))
            if slot is None or word == "unleased":
                continue
            if word in {"held", "pause"}:
                slot.got_lease()
                (self.jobs.pause if word == "pause" else self.jobs.go_on)(slot)
                continue
            if word != "lost":
                self.slots.told(ref, token, word)
            elif not slot.ended and not slot.lost:
                log.warning("lease lost job=%s", ref)
                metrics.leases_lost.inc()
                self.slots.lose(slot.title)


def _age_ms(reading: Reading) -> int:
    """Since a read was last completed, or a slot became free after none had been."""
    return round((monotonic() - reading.read_at) * 1000)


async def _first(
    wanted: "asyncio.Future[Any]",
    stop: "asyncio.Future[Any]",
    *,
    patience_s: float = 0.0,
    within_s: float | None = None,
) -> bool:
    """Waits for what is wanted, but for not much longer than `stop`; false if it did not come, and is cancelled."""
    await asyncio.wait({wanted, stop}, return_when=asyncio.FIRST_COMPLETED, timeout=within_s)
    if not wanted.done() and patience_s:
        await asyncio.wait({wanted}, timeout=patience_s)
    if wanted.done():
        return True
    wanted.cancel()
    await asyncio.gather(wanted, return_exceptions=True)
    return False
