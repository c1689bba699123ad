"""The service at one moment: what waits and runs in each stage, on each node, and how fast jobs move."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from prorl_mq.schema.ids import time_of
from prorl_mq.schema.messages import Stage
from prorl_mq.service.changes import changes_of
from prorl_mq.store import events, gauges
from prorl_mq.store.gauges import Load, StageGauge
from prorl_mq.store.store import Store
from prorl_mq.store.workers import WorkerStatus, waits

NODES: Final = 100  # shown at most, the busiest first
WINDOW_MS: Final = 60_000
ENTRIES: Final = 400  # of the event stream that rates are taken from at most


class StageNow(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, its lanes included. `running` were read by a worker; `busy` of its `slots` hold a job."""

    stage: Stage
    queued: int
    running: int
    oldest_age_s: float  # of the oldest entry; 0 where there is none
    workers: int
    slots: int
    busy: int


class NodeNow(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of one node, and its lane: jobs whose sandbox lives there."""

    node: str
    sandbox: str
    workers: int
    slots: Mapping[str, int]  # of each stage
    busy: Mapping[str, int]
    lane_queued: int
    lane_running: int


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Events a minute, by name, over the last `window_s` seconds: less than a minute where events are many."""

    window_s: float
    per_minute: Mapping[str, float]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The whole service, with the jobs of all tenants."""

    at_ms: int
    stages: Sequence[StageNow]
    nodes: Sequence[NodeNow]
    nodes_in_all: int
    rates: Rates
    waits: Sequence[str]  # for infrastructure: a line an image or task family that fails, and one a worker
    backlog_groups: int
    leased: int
    delayed: int
    paused: int
    due: int
    memory_bytes: int
    memory_limit_bytes: int  # 0: none


async def read(store: Store) -> Overview:
    """Costs some round trips, whatever the service holds."""
    now = await gauges.read(store)
    nodes = _nodes(now.workers, now.lanes)
    return Overview(
        at_ms=now.at_ms,
        stages=[_stage(gauge) for gauge in now.stages],
        nodes=nodes[:NODES],
        nodes_in_all=len(nodes),
        rates=await _rates(store, now.at_ms),
        waits=[*(f"waits: {each.brief}" for each in now.failing if each.open), *waits(now.workers)],
        backlog_groups=sum(now.backlog_by_tenant.values()),
        leased=now.leased,
        delayed=now.delayed,
        paused=now.paused,
        due=now.due,
        memory_bytes=now.memory_bytes,
        memory_limit_bytes=now.memory_limit_bytes,
    )


def _stage(gauge: StageGauge) -> StageNow:
    return StageNow(
        stage=gauge.stage,
        queued=gauge.load.queued,
        running=gauge.load.held,
        oldest_age_s=round(gauge.load.oldest_s, 1),
        workers=gauge.workers,
        slots=gauge.slots,
        busy=gauge.busy,
    )


def _nodes(workers: Sequence[WorkerStatus], lanes: Mapping[str, Load]) -> list[NodeNow]:
    names = {worker.node for worker in workers} | set(lanes)
    found = [_node(name, [each for each in workers if each.node == name], lanes.get(name, Load())) for name in names]
    return sorted(found, key=lambda node: (-node.lane_queued - node.lane_running - sum(node.busy.values()), node.node))


def _node(name: str, workers: Sequence[WorkerStatus], lane: Load) -> NodeNow:
    slots, busy = Counter[str](), Counter[str]()
    for worker in workers:
        slots[worker.stage] += worker.slots
        busy[worker.stage] += worker.busy
    kinds = {worker.sandbox for worker in workers if worker.sandbox != "none"}
    return NodeNow(
        node=name,
        sandbox=", ".join(sorted(kinds)) or "none",
        workers=len(workers),
        slots=dict(slots),
        busy=dict(busy),
        lane_queued=lane.queued,
        lane_running=lane.held,
    )


async def _rates(store: Store, at_ms: int) -> Rates:
    since = at_ms - WINDOW_MS
    entries = await events.newest(store, limit=ENTRIES, since_ms=since)
    if len(entries) == ENTRIES:
        since = time_of(entries[-1].id)
    seen = Counter(change.event for entry in entries for change in changes_of(entry.lines))
    minutes = max(1, at_ms - since) / 60_000
    return Rates(window_s=minutes * 60, per_minute={name: round(count / minutes, 1) for name, count in seen.items()})
