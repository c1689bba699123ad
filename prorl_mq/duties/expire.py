"""Timers: delayed jobs are requeued when their back-off is over, jobs past their total deadline end, pauses end."""

from prorl_mq.duties.duty import DutyTurn
from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.schema.items import Stop
from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import Outcome
from prorl_mq.schema.status import PauseEnd
from prorl_mq.service.pause import resume_jobs
from prorl_mq.store import jobs, runs
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


class PauseEnds:
    """Resumes, or ends as expired, jobs whose pause is over, and lets runs admit again whose pause is."""

    def __init__(self, store: Store, clock: ServiceClock) -> None:
        self.store = store
        self.clock = clock

    async def turn(self) -> float:
        """One page of what is due."""
        refs, now_ms = await jobs.pauses_over(self.store, limit=AT_ONCE), await self.store.now_ms()
        held = [run for run, until_ms in (await runs.paused(self.store)).items() if until_ms <= now_ms]
        if not refs and not held:
            return IDLE_S
        if await self.clock.jumped():
            return 0.0
        now_ms = min(now_ms, await self.store.now_ms())  # another duty may have put right what it was told before
        looked = await jobs.read(self.store, refs)
        expiring = [job for job in looked if job and job.ends == PauseEnd.EXPIRE]
        await resume_jobs(self.store, [job.ref for job in looked if job and job.ends != PauseEnd.EXPIRE], over=True)
        for chunk in batched(expiring, BATCH):
            stops = [Stop(job.ref, jobs.ended(job, Outcome.EXPIRED), job.stream, deadline=True) for job in chunk]
            await self.store.stop(Verb.EXPIRE, stops)
        await self.store.let_over(held, now_ms)
        return 0.0 if len(refs) == AT_ONCE else IDLE_S


def timers(store: Store, clock: ServiceClock) -> dict[str, DutyTurn]:
    """The turns of these duties, by their names."""
    ends = Expiry(store, clock), Promotion(store), PauseEnds(store, clock)
    return dict(zip(("expire", "promote", "pauses"), (each.turn for each in ends), strict=True))
