"""Repairs: after each heartbeat slots, tasks and leases are compared, and a difference is put right and counted.

There should be none (`jobs`). One that is found means a defect of this process, or an answer of Redis that was lost
after every repeat; either would hold a place of this worker without limit, or a job for a whole lease.
"""

import asyncio
import logging

from prorl_mq.errors import RedisUnavailable
from prorl_mq.store.server.connection import patiently
from workers import metrics
from workers.process.claims import Claimed, Claims
from workers.process.jobs import Jobs
from workers.process.read import SPARE, Reading
from workers.process.slots import Slots
from workers.settings import WorkerSettings
from workers.stages.stage import StageRunner

log = logging.getLogger("workers")


class Repairs:
    """The comparing loop of one worker."""

    def __init__(self, slots: Slots, jobs: Jobs, reading: Reading, claims: Claims, settings: WorkerSettings) -> None:
        self._slots = slots
        self._jobs = jobs
        self._reading = reading
        self._claims = claims
        self._idle_ms = settings.lease_ms // 3
        self._outage_ms = settings.redis.outage_ms
        self._beaten = asyncio.Event()

    def beaten(self) -> None:
        """A heartbeat was answered."""
        self._beaten.set()

    async def run(self, stage: StageRunner) -> None:
        """Compares after each answered heartbeat."""
        while True:
            await self._beaten.wait()
            self._beaten.clear()
            try:
                await self.compare(stage, idle_ms=self._idle_ms)
            except RedisUnavailable:
                raise
            except Exception:
                log.exception("slots, tasks and leases could not be compared")

    async def compare(self, stage: StageRunner, *, idle_ms: int) -> None:
        """One comparison; of entries it concerns those that were read at least so long ago."""
        self._local()
        if not await self._reading.overlooked(idle_ms):
            return
        for read in await patiently(lambda: self._reading.again(SPARE), outage_ms=self._outage_ms):
            for claimed in await self._claims.claim(read):
                self._place(claimed, stage)

    def _local(self) -> None:
        for slot in self._jobs.abandoned():
            _repaired("slot", f"job={slot.work.held.ref} held a slot that nothing worked for")
            self._jobs.adopt(slot)
        for slot in self._jobs.strays():
            slot.lost = True
            if slot.stop():
                _repaired("task", f"job={slot.work.held.ref} ran without a slot")

    def _place(self, claimed: Claimed, stage: StageRunner) -> None:
        """A lease that nobody holds is given back: its work may have begun. An entry that was only read is work."""
        ref = claimed.work.held.ref
        if claimed.known or self._slots.free <= 0:
            if self._jobs.hand_back(claimed.work):
                _repaired("lease", f"job={ref} was leased to this worker, which did not hold it")
        elif self._jobs.start(claimed.work, stage, leased=True):
            _repaired("entry", f"job={ref} was delivered to this worker, which did not claim it")


def _repaired(kind: str, what: str) -> None:
    log.warning("repaired: %s", what)
    metrics.repairs.labels(kind).inc()
