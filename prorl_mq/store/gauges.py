"""State of the whole service at one moment, in numbers read from Redis."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from prorl_mq.rules.bias import Losses
from prorl_mq.schema.ids import GroupRef, RunRef, tenant_of, time_of
from prorl_mq.schema.items import Lane
from prorl_mq.schema.messages import Stage
from prorl_mq.store import breakers, families, pools, runs
from prorl_mq.store.archive import waiting
from prorl_mq.store.archive.waiting import ArchiveState
from prorl_mq.store.breakers import Shared
from prorl_mq.store.families import Abilities
from prorl_mq.store.layout.keys import GROUP, lane_name
from prorl_mq.store.pools import BackendStatus
from prorl_mq.store.server import fitness
from prorl_mq.store.store import Store
from prorl_mq.store.streams import lanes, shared
from prorl_mq.store.workers import WorkerStatus, living

HEADS: Final = 32  # groups of a backlog that its size in jobs is judged by


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs on one stream or on several: those that wait for a worker, and those that a worker has read."""

    queued: int = 0
    held: int = 0
    oldest_s: float = 0.0  # since the oldest of them came; 0 where there is none


class FamilyGauge(msgspec.Struct, frozen=True, kw_only=True):
    """The lane of a task family that some worker of its stage lacks."""

    name: str
    load: Load
    slots: int  # of workers that can
    why: str  # its jobs wait; empty while somebody can take them


class StageGauge(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, its lanes included."""

    stage: Stage
    load: Load
    workers: int
    slots: int
    busy: int


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The service at one moment."""

    at_ms: int
    stages: list[StageGauge]
    lanes: Mapping[str, Load]  # by node, those of task families included
    families: Sequence[FamilyGauge]
    workers: Sequence[WorkerStatus]
    leased: int
    delayed: int
    paused: int
    due: int
    backlog_by_tenant: Mapping[str, int]  # groups
    in_flight_by_tenant: Mapping[str, int]  # jobs
    backends: Sequence[tuple[str, BackendStatus]]  # each with its pool
    failing: Sequence[Shared]  # images and task families that failed lately, open or not
    losses: Mapping[RunRef, Losses]  # of each run
    archive: ArchiveState
    counters: Mapping[str, int]  # of everything so far, as scripts keep them
    memory_bytes: int
    memory_limit_bytes: int


async def read(store: Store) -> Gauges:
    """Costs a few round trips, whatever the service holds."""
    keys = store.keys
    workers, on_streams = await living(store), await streams(store)
    counts = await store.read_many(
        [
            ("ZCARD", keys.leases),
            ("ZCARD", keys.delayed),
            ("XLEN", keys.due),
            ("HGETALL", keys.in_flight),
            ("HGETALL", keys.counters),
            ("ZCARD", keys.paused),
        ]
    )
    memory = await fitness.info(store.redis, "memory")
    return Gauges(
        at_ms=await store.now_ms(),
        stages=[_stage(stage, of_stage(on_streams, stage), workers) for stage in Stage],
        lanes=_nodes(on_streams),
        families=_families(on_streams, await families.abilities(store, workers)),
        workers=workers,
        leased=int(counts[0]),
        delayed=int(counts[1]),
        paused=int(counts[5]),
        due=int(counts[2]),
        backlog_by_tenant=_by_tenant((await backlogs(store)).items()),
        in_flight_by_tenant=_by_tenant(_pairs(counts[3])),
        backends=[(pool, each) for pool in await pools.names(store) for each in await pools.listing(store, pool)],
        failing=list((await breakers.look(store)).values()),
        losses=await runs.losses(store, await runs.known(store)),
        archive=await waiting.state(store),
        counters=dict(_pairs(counts[4])),
        memory_bytes=int(memory["used_memory"]),
        memory_limit_bytes=int(memory.get("maxmemory", "0")),
    )


async def streams(store: Store) -> dict[Lane, Load]:
    """The load of each stage stream and lane. A stream that does not exist yet is empty."""
    places = [store.keys.lane(stream) for stream in shared(store.keys)]
    places += sorted((await lanes(store)).values(), key=lane_name)
    places += sorted(await families.look(store), key=lane_name)
    names = [store.keys.stage(*place) for place in places]
    there = await store.read_many([("EXISTS", name) for name in names])
    made = [(place, name) for place, name, exists in zip(places, names, there, strict=True) if exists]
    lengths = await store.read_many([("XLEN", name) for _, name in made])
    pending = await store.read_many([("XPENDING", name, GROUP) for _, name in made])
    first = await store.read_many([("XRANGE", name, "-", "+", "COUNT", 1) for _, name in made])
    now_ms = await store.now_ms()
    found = {
        place: _load(int(length), int(summary[0]), rows, now_ms)
        for (place, _), length, summary, rows in zip(made, lengths, pending, first, strict=True)
    }
    return {place: found.get(place, Load()) for place in places}


def of_stage(on_streams: Mapping[Lane, Load], stage: Stage) -> Load:
    """The sum over a stage's streams."""
    return _sum(load for lane, load in on_streams.items() if lane.stage is stage)


async def backlogs(store: Store) -> dict[RunRef, int]:
    """Number of groups of each run that wait to be admitted."""
    known = await runs.known(store)
    sizes = await store.read_many([("ZCARD", store.keys.backlog(run)) for run in known])
    return {run: int(size) for run, size in zip(known, sizes, strict=True)}


async def backlog_jobs(store: Store) -> int:
    """Number of jobs that wait to be admitted, estimated from the size of the first groups of each run."""
    total = 0.0
    for run, groups in (await backlogs(store)).items():
        heads = await store.read("ZRANGE", store.keys.backlog(run), 0, HEADS - 1)
        asked = [("HGET", store.keys.group(GroupRef(head.decode())), "wanted") for head in heads]
        sizes = [int(size) for size in await store.read_many(asked) if size]
        total += groups * sum(sizes) / len(sizes) if sizes else 0
    return round(total)


async def delayed(store: Store) -> int:
    """Number of jobs that wait for their next attempt."""
    return int(await store.read("ZCARD", store.keys.delayed))


def _sum(loads: Iterable[Load]) -> Load:
    found = list(loads)
    return Load(
        queued=sum(load.queued for load in found),
        held=sum(load.held for load in found),
        oldest_s=max(load.oldest_s for load in found),
    )


def _nodes(on_streams: Mapping[Lane, Load]) -> dict[str, Load]:
    nodes = sorted({lane.node for lane in on_streams if lane.node})
    return {node: _sum(load for lane, load in on_streams.items() if lane.node == node) for node in nodes}


def _families(on_streams: Mapping[Lane, Load], able: Abilities) -> list[FamilyGauge]:
    return [
        FamilyGauge(name=lane_name(lane), load=load, slots=able.slots(lane), why=able.why_waits(lane))
        for lane, load in on_streams.items()
        if lane.family
    ]


def _load(length: int, held: int, first: Sequence[tuple[bytes, object]], now_ms: int) -> Load:
    born_ms = time_of(first[0][0].decode()) if first else now_ms
    return Load(queued=max(0, length - held), held=held, oldest_s=max(0.0, (now_ms - born_ms) / 1000))


def _stage(stage: Stage, load: Load, workers: Sequence[WorkerStatus]) -> StageGauge:
    mine = [worker for worker in workers if worker.stage is stage]
    return StageGauge(
        stage=stage,
        load=load,
        workers=len(mine),
        slots=sum(worker.slots for worker in mine),
        busy=sum(worker.busy for worker in mine),
    )


def _pairs(row: Sequence[bytes]) -> Iterator[tuple[str, int]]:
    return ((name.decode(), int(value)) for name, value in zip(row[::2], row[1::2], strict=True))


def _by_tenant(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sums over the runs of each tenant."""
    sums: dict[str, int] = {}
    for run, count in counts:
        tenant = tenant_of(run)
        sums[tenant] = sums.get(tenant, 0) + count
    return sums
