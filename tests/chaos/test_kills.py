"""Whatever is killed, every group's record comes exactly once, and nothing is left over."""

import os
import random
import signal

import pytest

from prorl_mq.schema.codec import decode_trajectory
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Limits, Outcome, Task, Verdict
from prorl_mq.service import submit
from prorl_mq.store.store import Store
from tests.support.service import acknowledge_all, assert_nothing_left, gather, start_all, store_of
from tests.support.world import Killer, World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(300)]

SEEDS = [int(seed) for seed in os.environ.get("PRORL_CHAOS_SEEDS", "1").split(",")]
JOBS = int(os.environ.get("PRORL_CHAOS_JOBS", "2000"))


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


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_record_comes_exactly_once_whatever_is_killed(world: World, seed: int) -> None:
    """Workers, APIs and Redis die by SIGKILL, workers stand still past their lease; no group is lost or doubled.

    For 100 s at most, as a slow machine does little between two kills.
    """
    async with store_of(world) as store:
        await start_all(world, store)
        request = batch(seed, JOBS)
        await submit.accept(store, "default", request)
        killer = Killer(world, seed)
        await gather(store, killer, len(request.groups), within_s=100)
        killer.calm()
        records = await gather(store, None, len(request.groups), within_s=100)
        missing = {f"b{seed}-{i}" for i in range(len(request.groups))} - {record.group_id for record in records}
        assert not missing, f"{len(missing)} groups lost after {killer.done}"
        assert len(records) == len({record.group_id for record in records}) == len(request.groups)
        assert len(killer.done) >= 5, killer.done
        await check_records(store, request, records)
        assert await acknowledge_all(store) == len(request.groups), "a group was published twice"
        await assert_nothing_left(store)
    codes = world.stop()
    # One that was started just now may not have its signal handler yet; it holds nothing.
    assert set(codes.values()) <= {0, -signal.SIGTERM}, (
        codes,
        [world.log(name)[-2000:] for name, code in codes.items() if code],
    )


async def check_records(store: Store, request: BatchRequest, records: list[GroupRecord]) -> None:
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
                data = await store.read("GET", sample.trajectory or "")
                assert decode_trajectory(data).segments[0].prompt_ids == [11, 12, 13 + sample.index]
        assert "CANARY" not in str(record)
