"""Timers: delayed jobs whose back-off is over go on; jobs past their total deadline end."""

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.items import Stop
from prorl_mq.schema.lifecycle import Verb
from prorl_mq.schema.messages import Outcome
from prorl_mq.store import jobs as snapshots
from prorl_mq.store.store import BATCH, Broker, batched

AT_ONCE = 256
IDLE_S = 0.1


class Promotion:
    """Promotes due delayed jobs."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def turn(self) -> float:
        """One page of what is due."""
        refs = await due(self.broker, self.broker.keys.delayed)
        jobs = zip(refs, await snapshots.jobs(self.broker, refs), strict=True)
        for chunk in batched([(ref, job.stream if job else self.broker.keys.due) for ref, job in jobs], BATCH):
            await self.broker.promote(chunk)
        return 0.0 if len(refs) == AT_ONCE else IDLE_S


class Expiry:
    """Ends jobs whose total deadline has passed."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def turn(self) -> float:
        """One page of what is due."""
        refs = await due(self.broker, self.broker.keys.deadlines)
        looked = await snapshots.jobs(self.broker, refs)
        gone = [ref for ref, job in zip(refs, looked, strict=True) if job is None]
        if gone:
            await self.broker.read("ZREM", self.broker.keys.deadlines, *gone)
        stops = [
            Stop(job.ref, snapshots.ended(job, Outcome.EXPIRED), job.stream, deadline=True) for job in looked if job
        ]
        for chunk in batched(stops, BATCH):
            await self.broker.stop(Verb.EXPIRE, chunk)
        return 0.0 if len(refs) == AT_ONCE else IDLE_S


async def due(broker: Broker, timers: str) -> list[JobRef]:
    """Members of a sorted set whose time has come, oldest first."""
    found = await broker.read("ZRANGEBYSCORE", timers, "-inf", await broker.now_ms(), "LIMIT", 0, AT_ONCE)
    return [JobRef(ref.decode()) for ref in found]
