"""What the whole service looks like at one moment, in numbers read from Redis."""

import msgspec

from prorl_mq import checks
from prorl_mq.backends import listing
from prorl_mq.broker import Broker
from prorl_mq.ids import RunRef
from prorl_mq.messages import Stage
from prorl_mq.workers_seen import WorkerStatus, living


class StageGauge(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, its lanes included."""

    stage: Stage
    depth: int  # entries on its streams, queued and leased
    oldest_age_s: float  # of the oldest entry; 0 where there is none
    workers: int
    slots: int
    busy: int


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The service at one moment."""

    stages: list[StageGauge]
    backlog_groups: int
    leased: int
    delayed: int
    due: int
    llm_in_flight: dict[str, int]  # pool/backend → jobs
    memory_bytes: int
    memory_limit_bytes: int


async def read(broker: Broker) -> Gauges:
    """Costs a few round trips, whatever the service holds."""
    keys = broker.keys
    lanes = [node.decode() for node in await broker.read("SMEMBERS", keys.lanes)]
    workers = await living(broker)
    now_ms = await broker.now_ms()
    runs = [RunRef(run.decode()) for run in await broker.read("ZRANGE", keys.runs, 0, -1)]
    backlogs = await broker.read_many([("ZCARD", keys.backlog(run)) for run in runs])
    counts = await broker.read_many(
        [("ZCARD", keys.leases), ("ZCARD", keys.delayed), ("XLEN", keys.due), ("SMEMBERS", keys.pools)]
    )
    memory = await checks.info(broker.redis, "memory")
    in_flight = {
        f"{pool.decode()}/{each.address}": each.in_flight
        for pool in counts[3]
        for each in await listing(broker, pool.decode())
    }
    return Gauges(
        stages=[await _stage(broker, stage, lanes, workers, now_ms) for stage in Stage],
        backlog_groups=sum(int(count) for count in backlogs),
        leased=int(counts[0]),
        delayed=int(counts[1]),
        due=int(counts[2]),
        llm_in_flight=in_flight,
        memory_bytes=int(memory["used_memory"]),
        memory_limit_bytes=int(memory.get("maxmemory", "0")),
    )


async def _stage(
    broker: Broker, stage: Stage, lanes: list[str], workers: list[WorkerStatus], now_ms: int
) -> StageGauge:
    keys = broker.keys
    streams = [keys.stage(stage), *(keys.stage(stage, node) for node in lanes if stage is Stage.RUN)]
    lengths = await broker.read_many([("XLEN", stream) for stream in streams])
    first = await broker.read_many([("XRANGE", stream, "-", "+", "COUNT", 1) for stream in streams])
    born = [int(rows[0][0].partition(b"-")[0]) for rows in first if rows]
    mine = [worker for worker in workers if worker.stage is stage]
    return StageGauge(
        stage=stage,
        depth=sum(int(length) for length in lengths),
        oldest_age_s=max(0.0, (now_ms - min(born)) / 1000) if born else 0.0,
        workers=len(mine),
        slots=sum(worker.slots for worker in mine),
        busy=sum(worker.busy for worker in mine),
    )
