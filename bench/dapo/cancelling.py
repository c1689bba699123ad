"""From the decision to cancel a job until its worker has confirmed that its processes and its request are dead.

Real workers, real sandboxes with a shell in each, a fake backend that never answers. Both moments are Redis's own
time, from the job's time line. First single jobs are cancelled, one after the other, while the rest continues; then the
rest at once.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from bench.dapo import held
from bench.queue.processes import environment, start_worker, stop_workers
from prorl_mq.duties import running
from prorl_mq.process import redis_server
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import DEFAULT_TENANT, pool_ref, run_ref
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Limits, Stage, Task
from prorl_mq.service import cancel, submit
from prorl_mq.store import pools, results
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from prorl_mq.testing.fake_backend import FakeBackend

RUN = run_ref(DEFAULT_TENANT, "held")
SANDBOX_BYTES = 24 << 20  # a sandbox with its server and its shell, taken generously
SHARE = 0.6  # of the memory that is free
RUN_PROCESSES, INIT_PROCESSES, INIT_SLOTS = 4, 2, 4
PATIENCE_S = 900.0
NEVER_MS = 3_600_000.0


class Cancelled(NamedTuple):
    """One job's stop."""

    at_once: bool  # with many others
    in_tool_call: bool
    ms: int


def room(wanted: int) -> int:
    """As many live sandboxes as the memory allows."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(wanted, int(int(line.split()[1]) * 1024 * SHARE) // SANDBOX_BYTES)
    return wanted


async def measure(active: int, singly: int) -> list[Cancelled]:
    """`active` jobs work; `singly` of them are cancelled one by one, then all others together."""
    with tempfile.TemporaryDirectory(prefix="pb") as name:
        scratch = Path(name)
        os.chmod(scratch, 0o755)  # noqa: PTH101 - sandboxes' users must be able to pass it
        async with (
            redis_server.running(scratch / "redis") as settings,
            running.running(settings, name="bench"),
            FakeBackend(latency_ms=NEVER_MS) as backend,
            _store(settings) as store,
            _workers(scratch, settings, active),
        ):
            await pools.add(store, pool_ref(DEFAULT_TENANT, "policy"), backend.address)
            await _all_work(store, active)
            found = [await _cancel_one(store, number) for number in range(singly)]
            return found + await _cancel_rest(store, active - singly)


@asynccontextmanager
async def _store(settings: RedisSettings) -> AsyncIterator[Store]:
    redis, waiting = connect(settings), connect(settings)
    try:
        yield Store(redis, Keys(settings.namespace), name="bench", outage_ms=30_000, waiting=waiting)
    finally:
        await waiting.aclose()
        await redis.aclose()


@asynccontextmanager
async def _workers(scratch: Path, settings: RedisSettings, active: int) -> AsyncIterator[None]:
    env = environment({}, [held.write_entry_point(scratch / "plugin")])
    sandboxes = ["--sandbox", "bubblewrap", "--state-dir", str(scratch / "state"), "--node", "bench"]
    slots = {Stage.INIT: INIT_SLOTS, Stage.RUN: -(-active // RUN_PROCESSES)}
    counts = {Stage.INIT: INIT_PROCESSES, Stage.RUN: RUN_PROCESSES}
    started = []
    try:
        for stage, count in counts.items():
            argv = [sys.executable, "-m", "workers", "--stage", stage.value, "--slots", str(slots[stage])]
            argv += ["--redis", settings.url, "--namespace", settings.namespace, "--handlers", "bench_held", *sandboxes]
            argv += ["--grace-ms", "0"]
            logs = [scratch / f"{stage.value}-{number}.log" for number in range(count)]
            started += [start_worker(argv, env, log) for log in logs]
        yield
    finally:
        await asyncio.to_thread(stop_workers, started)


async def _all_work(store: Store, active: int) -> None:
    """Submits one job a group; returns when every one of them is in RUN. Nothing tells of that: it is looked for."""
    keys = store.keys
    async with asyncio.timeout(PATIENCE_S):
        while not await store.read("HEXISTS", keys.schemas, held.DATA_SOURCE):
            await asyncio.sleep(0.1)
        task = Task(task_id="held", data_source=held.DATA_SOURCE)
        groups = [GroupRequest(task=task, n=1, group_id=f"g-{number}") for number in range(active)]
        limits = Limits(init_ms=600_000)
        request = BatchRequest(run_id="held", batch_id="b", groups=groups, limits=limits)
        await submit.accept(store, DEFAULT_TENANT, request)
        looks = [("HMGET", keys.job(f"{RUN}:g-{n}:0"), "state", "stage") for n in range(active)]  # type: ignore[arg-type]
        while set(map(tuple, await store.read_many(looks))) != {(b"leased", b"run")}:
            await asyncio.sleep(0.5)


async def _cancel_one(store: Store, number: int) -> Cancelled:
    await cancel.cancel(store, "job", f"{RUN}:g-{number}:0")
    [stop] = await _stops(store, 1, at_once=False)
    return stop


async def _cancel_rest(store: Store, count: int) -> list[Cancelled]:
    await cancel.cancel(store, "run", RUN)
    return await _stops(store, count, at_once=True)


async def _stops(store: Store, count: int, *, at_once: bool) -> list[Cancelled]:
    """Waits for the records of so many groups, and acknowledges them."""
    found: list[Cancelled] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            closed = await results.collect(store, RUN, limit=1_000, wait_ms=1_000)
            for each in closed:
                record = decode(each.record, GroupRecord)
                found.append(Cancelled(at_once, held.in_tool_call(record.group_id), _between(record)))
            await results.acknowledge(store, RUN, [each.cursor for each in closed])
    return found


def _between(record: GroupRecord) -> int:
    """Milliseconds from `cancel` to `cancelled` in the time line of its only job."""
    [timeline] = record.timelines.values()
    at = {event: int(ms) for ms, event, *_ in (line.split("\t") for line in timeline.splitlines())}
    assert record.samples[0].stopped_ms is not None, f"{record.group_id} was not stopped by its worker"
    return at["cancelled"] - at["cancel"]
