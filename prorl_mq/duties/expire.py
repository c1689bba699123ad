"""Timers: delayed jobs are requeued when their back-off is over; jobs past their total deadline end."""

from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.schema.items import Stop
from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import Outcome
from prorl_mq.store import jobs
from prorl_mq.store.store import BATCH, Store, batched

AT_ONCE = 256
IDLE_S = 0.1


class Promotion:
    """Promotes due delayed jobs."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def turn(self) -> float:
        """One page of what is due."""
        refs = await jobs.delays_over(self.store, limit=AT_ONCE)
        found = zip(refs, await jobs.read(self.store, refs), strict=True)
        for chunk in batched([(ref, job.stream if job else None) for ref, job in found], BATCH):
            await self.store.promote(chunk)
        return 0.0 if len(refs) == AT_ONCE else IDLE_S


class Expiry:
    """Ends jobs whose total deadline has passed."""

    def __init__(self, store: Store, clock: ServiceClock) -> None:
        self.store = store
        self.clock = clock

    async def turn(self) -> float:
        """One page of what is due."""
        refs = await jobs.deadlines_over(self.store, limit=AT_ONCE)
        if not refs:
            await self.clock.keep()
            return IDLE_S
        if await self.clock.jumped():  # perhaps none of them has passed
            return 0.0
        looked = await jobs.read(self.store, refs)
        gone = [ref for ref, job in zip(refs, looked, strict=True) if job is None]
        await jobs.end_deadlines(self.store, gone)
        stops = [Stop(job.ref, jobs.ended(job, Outcome.EXPIRED), job.stream, deadline=True) for job in looked if job]
        for chunk in batched(stops, BATCH):
            await self.store.stop(Verb.EXPIRE, chunk)
        return 0.0 if len(refs) == AT_ONCE else IDLE_S
