"""Which workers are alive: each says so with its heartbeat."""

from collections.abc import Iterable
from typing import Any

import msgspec

from prorl_mq.broker import Broker
from prorl_mq.messages import Stage


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A living worker process."""

    name: str
    stage: Stage
    node: str
    slots: int
    busy: int
    pid: int
    started_ms: int
    sandbox: str = "none"


async def living(broker: Broker) -> list[WorkerStatus]:
    """Workers whose heartbeat is not overdue."""
    names = await broker.read("ZRANGEBYSCORE", broker.keys.workers, await broker.now_ms(), "+inf")
    rows = await broker.read_many([("HGETALL", broker.keys.worker(name.decode())) for name in names])
    return [_status(name.decode(), row) for name, row in zip(names, rows, strict=True) if row]


def slots(workers: Iterable[WorkerStatus], stage: Stage, node: str | None = None) -> int:
    """Slots of a stage that are alive, on one node or on all."""
    return sum(w.slots for w in workers if w.stage is stage and node in {None, w.node})


def _status(name: str, row: list[bytes]) -> WorkerStatus:
    fields: dict[str, Any] = {k.decode(): v.decode() for k, v in zip(row[::2], row[1::2], strict=True)}
    return msgspec.convert({"name": name, **fields}, WorkerStatus, strict=False)
