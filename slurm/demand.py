"""The work for each stage, and the workers available for it: read from Redis in a few round trips."""

from collections.abc import Sequence

import msgspec

from prorl_mq.schema.messages import Stage
from prorl_mq.store import gauges
from prorl_mq.store.gauges import Load
from prorl_mq.store.store import Store
from prorl_mq.store.workers import WorkerStatus, living


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The service at one moment."""

    backlog: int  # jobs that are wanted and not yet admitted
    stages: dict[Stage, Load]  # lanes included
    delayed: int
    workers: Sequence[WorkerStatus]


async def read(store: Store) -> Demand:
    """Raises `RedisUnavailable`."""
    streams = await gauges.streams(store)
    return Demand(
        backlog=await gauges.backlog_jobs(store),
        stages={stage: gauges.of_stage(streams, stage) for stage in Stage},
        delayed=await gauges.delayed(store),
        workers=await living(store),
    )
