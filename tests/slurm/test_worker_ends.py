"""How a worker on a cluster ends: by its time limit, by a signal, or for want of work."""

import asyncio
import os
import signal
import time

import pytest

from prorl_mq.schema.messages import Stage, Verdict
from prorl_mq.service import submit
from prorl_mq.store import pools
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import patiently
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from tests.chaos.test_faults import one_batch
from tests.support.service import acknowledge_all, assert_nothing_left, gather, start_all, store_of, until
from tests.support.world import World
from workers.process.lifetime import Allocation, TimeLimit, allocation, percentile

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
WITHIN_S = 60


async def start_without_workers(world: World, store: Store) -> None:
    world.start_redis()
    await patiently(lambda: fitness.start_up(store.redis), outage_ms=20_000)
    await pools.add(store, "default:policy", "http://127.0.0.1:1")
    world.start_api()


def test_a_fresh_worker_claims_whatever_the_limit() -> None:
    limit = TimeLimit(ends_at_ms=1_000)
    assert not limit.too_late(999_999)


def test_nothing_is_claimed_that_would_outlast_the_limit() -> None:
    """By the 95th of a hundred jobs: one slow job does not stop a worker early."""
    limit = TimeLimit(ends_at_ms=100_000)
    for seconds in [*([10.0] * 99), 60.0]:
        limit.took(seconds)
    assert not limit.too_late(90_000)
    assert limit.too_late(90_001)
    for _ in range(6):
        limit.took(60.0)
    assert limit.too_late(40_001)


def test_a_worker_outside_of_a_scheduler_has_no_limit() -> None:
    limit = TimeLimit(None)
    limit.took(1e9)
    assert not limit.too_late(1 << 60)


@pytest.mark.parametrize(("count", "at"), [(1, 0), (2, 1), (20, 18), (21, 19), (100, 94)])
def test_the_percentile_is_one_of_the_values(count: int, at: int) -> None:
    assert percentile(range(count), 0.95) == at


def test_a_task_knows_itself_by_array_and_index() -> None:
    """Never by SLURM_JOB_ID: the last task of an array has the id of the whole."""
    task = allocation(
        {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3", "PRORL_ENDS_AT": "50"}
    )
    assert task == Allocation(task="17_3", ends_at_ms=50_000)
    assert allocation({"SLURM_JOB_ID": "18", "SLURM_RESTART_COUNT": "2"}) == Allocation(task="18", restarts=2)
    assert allocation({"PATH": "/bin"}) is None


async def test_a_worker_past_its_limit_takes_one_job_and_leaves_the_rest(world: World) -> None:
    async with store_of(world) as store:
        await start_without_workers(world, store)
        slurm = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1", "PRORL_ENDS_AT": str(int(time.time()))}
        world.env |= slurm
        world.start_worker(Stage.RUN, 0, "--slots", "1")

        async def known() -> bool:
            return [worker.name.rpartition("-")[0] for worker in await living(store)] == ["run-17.1@n0"]

        await until(known)
        for name in slurm:
            del world.env[name]
        for stage in (Stage.INIT, Stage.EVAL):
            world.start_worker(stage)

        async def announced() -> bool:
            return len(await living(store)) == 3

        await until(announced)
        await submit.accept(store, "default", one_batch("b", 1, 3, run_ms=300))
        assert await asyncio.to_thread(world.workers["run-0"].wait, WITHIN_S) == 0
        world.start_worker(Stage.RUN, 1)
        [record] = await gather(store, None, 1, within_s=60)
        assert record.verdict is Verdict.ACCEPTED
        workers = [line for line in "\n".join(record.timelines.values()).splitlines() if "\tadvance\teval" in line]
        assert sum("run-17.1@n0" in line for line in workers) == 1
        assert len(workers) == 3
        assert await acknowledge_all(store) == 1
        await assert_nothing_left(store)


async def test_a_worker_with_nothing_to_do_ends(world: World) -> None:
    async with store_of(world) as store:
        await start_without_workers(world, store)
        world.start_worker(Stage.EVAL, 0, "--idle-exit-ms", "300")
        assert await asyncio.to_thread(world.workers["eval-0"].wait, WITHIN_S) == 0
        assert await living(store) == []


async def test_sigusr1_drains_and_asks_to_be_run_again(world: World) -> None:
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", one_batch("b", 2, 4, run_ms=700))

        async def busy() -> bool:
            return any(worker.stage is Stage.RUN and worker.busy for worker in await living(store))

        await until(busy)
        world.workers["run-0"].send_signal(signal.SIGUSR1)
        assert await asyncio.to_thread(world.workers["run-0"].wait, WITHIN_S) == 75
        world.start_worker(Stage.RUN, 1)
        records = await gather(store, None, 2, within_s=60)
        assert all(sample.attempt == 0 for record in records for sample in record.samples)
        assert await acknowledge_all(store) == 2
        await assert_nothing_left(store)


async def test_a_worker_that_still_waits_for_redis_ends_at_once(world: World) -> None:
    """A task that is drained before it has ever started is no failure."""
    del world.env["PRORL_REDIS"]
    world.env["PRORL_RENDEZVOUS"] = str(world.directory / "none.json")
    world.start_worker(Stage.RUN)
    worker = world.workers["run-0"]

    async def waits() -> bool:
        with open(f"/proc/{worker.pid}/status") as status:  # noqa: ASYNC230, PTH123 - the kernel's own file
            caught = next(line for line in status if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) & (1 << (signal.SIGUSR1 - 1)))

    await until(waits)
    worker.terminate()
    assert await asyncio.to_thread(worker.wait, WITHIN_S) == 0


async def test_a_worker_whose_redis_never_comes_says_so(world: World) -> None:
    del world.env["PRORL_REDIS"]
    world.env["PRORL_RENDEZVOUS"] = str(world.directory / "none.json")
    world.start_worker(Stage.RUN, 0, "--outage-ms", "50")
    assert await asyncio.to_thread(world.workers["run-0"].wait, WITHIN_S) == 1
    assert "none.json has not appeared" in world.log("run-0")


async def test_a_draining_nodes_lane_is_evacuated_before_the_worker_is_gone(world: World) -> None:
    """What waits on the lane need not wait for the jobs that the draining worker still finishes."""
    world.sandbox = "bubblewrap"
    state = world.directory / "state"
    state.mkdir(mode=0o755)
    world.directory.chmod(0o755)
    async with store_of(world) as store:
        await start_without_workers(world, store)
        world.start_worker(Stage.EVAL)
        world.start_worker(Stage.INIT)
        world.start_worker(Stage.RUN, 0, "--slots", "1", "--grace-ms", "60000")

        async def known() -> bool:
            return len(await living(store)) == 3

        await until(known)
        await submit.accept(store, "default", one_batch("b", 1, 2, run_ms=4000, box=1))
        lane = store.keys.stage(Stage.RUN, "n0")

        async def one_runs_one_waits() -> bool:
            return int(await store.read("XLEN", lane)) == 2

        await until(one_runs_one_waits)
        os.kill(world.workers["run-0"].pid, signal.SIGTERM)

        async def evacuated() -> bool:
            return int(await store.read("XLEN", lane)) == 1

        await until(evacuated)
        assert world.workers["run-0"].poll() is None
        assert await asyncio.to_thread(world.workers["run-0"].wait, WITHIN_S) == 0
        world.start_worker(Stage.RUN, 1)
        [record] = await gather(store, None, 1, within_s=60)
        assert record.verdict is Verdict.ACCEPTED
        assert "evacuate" in "\n".join(record.timelines.values())
        assert await acknowledge_all(store) == 1
        await assert_nothing_left(store)


async def test_a_worker_whose_lane_was_retired_under_it_makes_it_anew(world: World) -> None:
    """The reaper saw a lane without workers a moment before this worker was there."""
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        assert await store.retire_lane("n0") == "retired"

        async def back() -> bool:
            return bool(await store.read("SISMEMBER", store.keys.lanes, "n0"))

        await until(back)
        await submit.accept(store, "default", one_batch("b", 2, 2, run_ms=10))
        assert len(await gather(store, None, 2, within_s=60)) == 2
        assert world.workers["run-0"].poll() is None
        assert await acknowledge_all(store) == 2
        await assert_nothing_left(store)
