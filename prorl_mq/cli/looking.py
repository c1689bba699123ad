"""`prorl-mq job`, `cancel` and `status`: small answers about what goes on."""

import argparse
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from prorl_mq import backends, inspection, runs
from prorl_mq.broker import Broker
from prorl_mq.cli.service_settings import redis_settings
from prorl_mq.client import AsyncClient
from prorl_mq.connection import connect
from prorl_mq.errors import ConfigurationError
from prorl_mq.ids import BatchRef, public
from prorl_mq.keys import GROUP, Keys
from prorl_mq.messages import Stage
from prorl_mq.runs import RunStatus
from prorl_mq.workers_seen import living

FAULTS = (ConfigurationError,)


async def run(given: argparse.Namespace) -> int:
    await {"job": _job, "cancel": _cancel, "status": _status}[given.command](given)
    return 0


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    right = [bool(rows) and all(isinstance(row[place], int | float) for row in rows) for place in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join(map(line, [head, *texts]))


def run_table(found: Mapping[str, RunStatus]) -> str:
    """Runs under the names that the reader knows them by."""
    head = ("run", "weight", "backlog", "eval", "in flight", "un-acked", "settings", "why it waits")
    rows = [
        (name, run.settings.weight, run.backlog, run.backlog_eval, run.in_flight, run.unacked_groups,
         settings_text(run.settings), run.why)
        for name, run in found.items()
    ]  # fmt: skip
    return table(head, rows) if rows else "no runs"


def settings_text(settings: msgspec.Struct) -> str:
    """What is not the default, beside the weight."""
    given = {name: value for name, value in msgspec.to_builtins(settings).items() if name != "weight"}
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "-"


async def _job(given: argparse.Namespace) -> None:
    token = os.environ.get("PRORL_TOKEN")
    async with AsyncClient(given.url, token=token, patience_s=5) as client:
        job = await client.job(given.id)
    ended = f" as {job.outcome}" if job.outcome else ""
    where = f" in {job.stage}" if job.stage and not job.outcome else ""
    print(f"{job.job_id}: {job.state}{where}{ended}; {job.why}")
    if given.url.startswith("http"):
        _tell_events(await _events(given.url, given.id, token))


async def _events(url: str, job: str, token: str | None) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:
        answer = await http.get(f"{url.rstrip('/')}/v1/jobs/{quote(job, safe=':')}/events")
    return list(answer.json()["events"]) if answer.is_success else []


def _tell_events(events: Sequence[dict[str, Any]]) -> None:
    for event in events:
        after = (event["ms"] - events[0]["ms"]) / 1000
        words = (event[name] for name in ("event", "stage", "worker", "detail"))
        print(f"  {after:9.3f} s  {' '.join(word for word in words if word)}")


async def _cancel(given: argparse.Namespace) -> None:
    async with AsyncClient(given.url, token=os.environ.get("PRORL_TOKEN"), patience_s=30) as client:
        answer = await client.cancel(given.kind, given.id)
    running = f"; workers are stopping {answer.jobs} jobs" if answer.jobs else ""
    print(f"{given.kind} {answer.id}: {answer.state}{running}")


async def _status(given: argparse.Namespace) -> None:
    async with service_redis(given) as broker:
        print(await _overview(broker))


@contextlib.asynccontextmanager
async def service_redis(given: argparse.Namespace) -> AsyncIterator[Broker]:
    """The verbs, straight on the Redis that was named, or on that of the service in the state directory."""
    redis = connect(redis_settings(given.redis or own_redis(given.state_dir), given.namespace))
    try:
        yield Broker(redis, Keys(given.namespace), name="prorl-mq", outage_ms=2_000)
    finally:
        await redis.aclose()


def own_redis(state_dir: Path) -> str:
    """The server that `up` has started there. Raises `ConfigurationError`."""
    socket = state_dir.absolute() / "redis" / "redis.sock"
    if not socket.exists():
        raise ConfigurationError(f"no service runs in {state_dir}: start one with `prorl-mq up`, or give --redis URL")
    return f"unix://{socket}"


async def _overview(broker: Broker) -> str:
    workers = await living(broker)
    stages = []
    for stage in Stage:
        here = [worker for worker in workers if worker.stage is stage]
        queued, held = await _queued(broker, stage)
        busy, slots = sum(worker.busy for worker in here), sum(worker.slots for worker in here)
        stages.append((stage.value, queued, held, len(here), busy, slots))
    lines = [table(("stage", "queued", "held", "workers", "busy", "slots"), stages)]
    lines += [f"delayed {await broker.read('ZCARD', broker.keys.delayed)}"]
    known = await runs.known(broker)
    lines += [run_table(dict(zip(known, await runs.look(broker, known), strict=True)))]
    names = sorted(name.decode() for name in await broker.read("SMEMBERS", broker.keys.pools))
    rows = [
        (name, one.address, _state(one), one.version or "", one.in_flight)
        for name in names
        for one in await backends.listing(broker, name)
    ]
    sampled = await _sampled(broker)
    if sampled:
        lines.append(table(("DAPO batch", "phase", "accepted", "target", "in play", "waiting", "rate"), sampled))
    shown = table(("pool", "backend", "state", "version", "in flight"), rows) if rows else "no backends"
    return "\n\n".join([*lines, shown])


def _state(backend: backends.BackendStatus) -> str:
    """What matters most of it."""
    shut = "dead" if not backend.alive else backend.breaker.replace("_", " ") if backend.breaker != "closed" else ""
    return ", ".join(part for part in (backend.state, shut, backend.note) if part)


async def _queued(broker: Broker, stage: Stage) -> tuple[int, int]:
    """Jobs of a stage that wait for a worker, and that a worker holds; lanes of nodes included."""
    nodes = await broker.read("SMEMBERS", broker.keys.lanes) if stage is Stage.RUN else []
    queued = held = 0
    for node in (None, *(name.decode() for name in nodes)):
        stream = broker.keys.stage(stage, node)
        if await broker.read("EXISTS", stream):
            pending = int((await broker.read("XPENDING", stream, GROUP))[0])
            queued += int(await broker.read("XLEN", stream)) - pending
            held += pending
    return queued, held


async def _sampled(broker: Broker) -> list[tuple[Any, ...]]:
    """DAPO batches that have no report yet."""
    rows = []
    for ref in await broker.read("ZRANGE", broker.keys.dapo, 0, -1):
        now = (await inspection.batch_status(broker, BatchRef(ref.decode()))).dapo
        if now is not None:
            name, rate = public(ref.decode()), round(now.rate, 2)
            rows.append((name, now.phase.value, now.accepted, now.target_groups, now.in_play, now.waiting, rate))
    return rows
