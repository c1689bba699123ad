"""The work for each stage, and the workers available for it: read from Redis in a few round trips."""

from collections.abc import Sequence

import msgspec

from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.messages import Stage
from prorl_mq.store.keys import GROUP
from prorl_mq.store.store import Store
from prorl_mq.store.workers import WorkerStatus, living

HEADS = 32  # groups of a backlog that its size is judged by


class StageDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one stage, its lanes included."""

    queued: int
    held: int
    oldest_s: float  # since the oldest of them came


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The service at one moment."""

    backlog: int  # jobs that are wanted and not yet admitted
    stages: dict[Stage, StageDemand]
    delayed: int
    workers: Sequence[WorkerStatus]


async def read(store: Store) -> Demand:
    """Raises `RedisUnavailable`."""
    keys = store.keys
    lanes = [node.decode() for node in await store.read("SMEMBERS", keys.lanes)]
    now_ms = await store.now_ms()
    return Demand(
        backlog=await _backlog(store),
        stages={stage: await _stage(store, stage, lanes, now_ms) for stage in Stage},
        delayed=int(await store.read("ZCARD", keys.delayed)),
        workers=await living(store),
    )


async def _stage(store: Store, stage: Stage, lanes: Sequence[str], now_ms: int) -> StageDemand:
    names = [store.keys.stage(stage), *(store.keys.stage(stage, node) for node in lanes if stage is Stage.RUN)]
    there = await store.read_many([("EXISTS", name) for name in names])
    streams = [name for name, exists in zip(names, there, strict=True) if exists]
    lengths = await store.read_many([("XLEN", stream) for stream in streams])
    first = await store.read_many([("XRANGE", stream, "-", "+", "COUNT", 1) for stream in streams])
    pending = await store.read_many([("XPENDING", stream, GROUP) for stream in streams])
    held = sum(int(summary[0]) for summary in pending)
    born = [int(rows[0][0].partition(b"-")[0]) for rows in first if rows]
    return StageDemand(
        queued=max(0, sum(map(int, lengths)) - held),
        held=held,
        oldest_s=max(0.0, (now_ms - min(born)) / 1000) if born else 0.0,
    )


async def _backlog(store: Store) -> int:
    """Jobs, judged by the size of the first groups of each run."""
    keys = store.keys
    runs = [RunRef(run.decode()) for run in await store.read("ZRANGE", keys.runs, 0, -1)]
    total = 0.0
    for run in runs:
        groups = int(await store.read("ZCARD", keys.backlog(run)))
        heads = await store.read("ZRANGE", keys.backlog(run), 0, HEADS - 1)
        group_key = keys.prefix + "group:"
        wanted = await store.read_many([("HGET", group_key + head.decode(), "wanted") for head in heads])
        sizes = [int(size) for size in wanted if size]
        total += groups * sum(sizes) / len(sizes) if sizes else 0
    return round(total)
