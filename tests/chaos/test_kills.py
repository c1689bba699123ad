"""Whatever is killed, every group's record comes exactly once, and nothing is left over."""

import asyncio
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_mq import backends, checks, results, streams, submission
from prorl_mq.broker import Broker
from prorl_mq.codec import decode, decode_trajectory
from prorl_mq.connection import connect, patiently
from prorl_mq.ids import run_ref
from prorl_mq.keys import Keys
from prorl_mq.messages import BatchRequest, GroupRecord, GroupRequest, Limits, Outcome, Stage, Task, Verdict
from tests.support.world import Killer, World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(300)]

RUN = run_ref("default", "chaos")
SEEDS = [int(seed) for seed in os.environ.get("PRORL_CHAOS_SEEDS", "1").split(",")]
JOBS = int(os.environ.get("PRORL_CHAOS_JOBS", "2000"))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        world = World(Path(name))
        try:
            yield world
        finally:
            world.stop()


def batch(seed: int, jobs: int, n: int = 8) -> BatchRequest:
    """Jobs of mixed length; some fail in INIT, some talk to a backend."""
    rng = random.Random(seed)
    groups = []
    for place in range(jobs // n):
        payload = {
            "init_ms": rng.choice([0, 0, 2, 20]),
            "run_ms": rng.choice([0, 5, 20, 150]),
            "eval_ms": rng.choice([0, 0, 5, 40]),
            "fail_init": rng.random() < 0.2,
            "llm": rng.random() < 0.3,
            "secret": f"CANARY-{seed}-{place}",
        }
        groups.append(GroupRequest(task=Task(task_id=f"t{place}", data_source="chaos", payload=payload), n=n))
    limits = Limits(max_deaths=100, max_attempts=100, backoff_ms=50, run_ms=20_000, init_ms=20_000, eval_ms=20_000)
    return BatchRequest(run_id="chaos", batch_id=f"b{seed}", groups=groups, limits=limits)


def broker_of(world: World, name: str = "trainer") -> Broker:
    keys = Keys(world.namespace)
    return Broker(
        connect(world.settings), keys, name=name, outage_ms=30_000, waiting=connect(world.settings, blocking=True)
    )


async def start_all(world: World, workers: int = 2) -> Broker:
    world.start_redis()
    broker = broker_of(world)
    await patiently(lambda: checks.start_up(broker.redis), outage_ms=20_000)
    await patiently(lambda: streams.ensure(broker.redis, streams.shared(broker.keys)), outage_ms=20_000)
    await backends.add(broker, "policy", world.start_backend())
    for number in range(2):
        world.start_api(number)
    for stage in Stage:
        for number in range(workers):
            world.start_worker(stage, number)
    await until(broker, lambda: schemas_known(broker))
    return broker


async def schemas_known(broker: Broker) -> bool:
    return bool(await broker.read("HLEN", broker.keys.schemas))


async def until(broker: Broker, true, *, within_s: float = 40.0) -> None:
    del broker
    async with asyncio.timeout(within_s):
        while not await true():
            await asyncio.sleep(0.05)


async def gather(broker: Broker, killer: Killer | None, groups: int, *, within_s: float) -> list[GroupRecord]:
    """Every closed group, while the killer works; a cursor never shows one twice."""
    found: list[GroupRecord] = []
    after, give_up = "0", time.monotonic() + within_s
    while len(found) < groups and time.monotonic() < give_up:
        if killer is not None:
            killer.step()
        for result in await results.collect(broker, RUN, after=after, wait_ms=50):
            after = result.cursor
            found.append(decode(result.record, GroupRecord))
    return found


async def leftovers(broker: Broker) -> list[str]:
    """Keys that are neither permanent nor dying."""
    keys = broker.keys
    permanent = {
        keys.due, keys.events, keys.cancels, keys.runs, keys.schemas, keys.pools, keys.workers, keys.eval_bytes,
        keys.pool("policy"), keys.pool_info("policy"), keys.duty("reap:server"), keys.admit_bell,
        *(keys.stage(stage) for stage in Stage), keys.lanes, keys.stage(Stage.RUN, "n0"),
    }  # fmt: skip
    found = [key.decode() for key in await broker.read("KEYS", "*")]
    ttls = await broker.read_many([("PTTL", key) for key in found])
    return [key for key, ttl in zip(found, ttls, strict=True) if key not in permanent and ttl == -1]


async def assert_nothing_left(world: World, broker: Broker) -> None:
    keys = broker.keys
    for timers in (keys.leases, keys.delayed, keys.deadlines):
        assert await broker.read("ZRANGE", timers, 0, -1) == []
    for stage in Stage:
        assert await broker.read("XLEN", keys.stage(stage)) == 0
    heap = await broker.read("ZRANGE", keys.pool("policy"), 0, -1, "WITHSCORES")
    assert [int(load) for load in heap[1::2]] == [0], "a reservation was not given back"
    assert int(await broker.read("GET", keys.eval_bytes) or 0) == 0
    assert await leftovers(broker) == []


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_record_comes_exactly_once_whatever_is_killed(world: World, seed: int) -> None:
    """Workers, APIs and Redis die by SIGKILL, workers stand still past their lease; no group is lost or doubled."""
    broker = await start_all(world)
    request = batch(seed, JOBS)
    await submission.accept(broker, "default", request)
    killer = Killer(world, seed)
    records = await gather(broker, killer, len(request.groups), within_s=150)
    killer.calm()
    missing = {f"b{seed}-{i}" for i in range(len(request.groups))} - {record.group_id for record in records}
    assert not missing, f"{len(missing)} groups lost after {killer.done}"
    assert len(records) == len({record.group_id for record in records}) == len(request.groups)
    assert len(killer.done) >= 5, killer.done
    await check_records(broker, request, records)
    cursors = [result.cursor for result in await results.collect(broker, RUN, limit=10_000)]
    assert len(cursors) == len(request.groups), "a group was published twice"
    assert await results.acknowledge(broker, RUN, cursors) == len(cursors)
    await until(broker, lambda: no_keys(broker), within_s=20)
    await assert_nothing_left(world, broker)
    codes = world.stop()
    assert set(codes.values()) == {0}, (codes, [world.log(name)[-2000:] for name, code in codes.items() if code])


async def no_keys(broker: Broker) -> bool:
    return await leftovers(broker) == [] and await broker.read("ZCARD", broker.keys.leases) == 0


async def check_records(broker: Broker, request: BatchRequest, records: list[GroupRecord]) -> None:
    wanted = {f"{request.batch_id}-{place}": group for place, group in enumerate(request.groups)}
    for record in records:
        group = wanted[record.group_id]
        assert record.verdict is Verdict.ACCEPTED, (record.verdict, record.reason, record.samples)
        kept = [sample for sample in record.samples if not sample.replaced]
        assert len(kept) == group.n
        for sample in kept:
            assert sample.outcome is Outcome.COMPLETED
            assert sample.reward == float(sample.index % 2)
            if group.task.payload["llm"]:
                data = await broker.read("GET", sample.trajectory or "")
                assert decode_trajectory(data).segments[0].prompt_ids == [11, 12, 13 + sample.index]
        assert "CANARY" not in str(record)
