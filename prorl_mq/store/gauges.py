"""What the whole service looks like at one moment, in numbers read from Redis."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from prorl_mq.schema.ids import RunRef, time_of
from prorl_mq.schema.messages import Stage
from prorl_mq.store import fitness
from prorl_mq.store.pools import BackendStatus, listing
from prorl_mq.store.store import Store
from prorl_mq.store.workers import WorkerStatus, living


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
    leased: int
    delayed: int
    due: int
    backlog_by_tenant: Mapping[str, int]  # groups
    in_flight_by_tenant: Mapping[str, int]  # jobs
    backends: Sequence[tuple[str, BackendStatus]]  # each with its pool
    counters: Mapping[str, int]  # of everything so far, as scripts keep them
    memory_bytes: int
    memory_limit_bytes: int


async def read(store: Store) -> Gauges:
    """Costs a few round trips, whatever the service holds."""
    keys = store.keys
    lanes = [node.decode() for node in await store.read("SMEMBERS", keys.lanes)]
    workers = await living(store)
    now_ms = await store.now_ms()
    runs = [RunRef(run.decode()) for run in await store.read("ZRANGE", keys.runs, 0, -1)]
    backlogs = await store.read_many([("ZCARD", keys.backlog(run)) for run in runs])
    counts = await store.read_many(
        [
            ("ZCARD", keys.leases),
            ("ZCARD", keys.delayed),
            ("XLEN", keys.due),
            ("SMEMBERS", keys.pools),
            ("HGETALL", keys.in_flight),
            ("HGETALL", keys.counters),
        ]
    )
    memory = await fitness.info(store.redis, "memory")
    pools = sorted(pool.decode() for pool in counts[3])
    return Gauges(
        stages=[await _stage(store, stage, lanes, workers, now_ms) for stage in Stage],
        leased=int(counts[0]),
        delayed=int(counts[1]),
        due=int(counts[2]),
        backlog_by_tenant=_by_tenant(zip(runs, backlogs, strict=True)),
        in_flight_by_tenant=_by_tenant(_pairs(counts[4])),
        backends=[(pool, each) for pool in pools for each in await listing(store, pool)],
        counters=dict(_pairs(counts[5])),
        memory_bytes=int(memory["used_memory"]),
        memory_limit_bytes=int(memory.get("maxmemory", "0")),
    )


def _pairs(row: Sequence[bytes]) -> Iterator[tuple[str, int]]:
    return ((name.decode(), int(value)) for name, value in zip(row[::2], row[1::2], strict=True))


def _by_tenant(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sums over the runs of each tenant."""
    sums: dict[str, int] = {}
    for run, count in counts:
        tenant = run.partition(":")[0]
        sums[tenant] = sums.get(tenant, 0) + int(count)
    return sums


async def _stage(store: Store, stage: Stage, lanes: list[str], workers: list[WorkerStatus], now_ms: int) -> StageGauge:
    keys = store.keys
    streams = [keys.stage(stage), *(keys.stage(stage, node) for node in lanes if stage is Stage.RUN)]
    lengths = await store.read_many([("XLEN", stream) for stream in streams])
    first = await store.read_many([("XRANGE", stream, "-", "+", "COUNT", 1) for stream in streams])
    born = [time_of(rows[0][0].decode()) for rows in first if rows]
    mine = [worker for worker in workers if worker.stage is stage]
    return StageGauge(
        stage=stage,
        depth=sum(int(length) for length in lengths),
        oldest_age_s=max(0.0, (now_ms - min(born)) / 1000) if born else 0.0,
        workers=len(mine),
        slots=sum(worker.slots for worker in mine),
        busy=sum(worker.busy for worker in mine),
    )
