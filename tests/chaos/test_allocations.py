"""A rollout that is longer than the allocations of its workers, or is paused on its way: no turn is sampled twice."""

import asyncio
import os

import pytest

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.status import PauseOrder
from prorl_mq.service import pause, submit
from prorl_mq.store import jobs
from prorl_mq.store.store import Store
from tests.support.service import acknowledge_all, assert_nothing_left, gather, store_of
from tests.support.walk import Walker, started, trajectories, walks
from tests.support.world import World

pytestmark = [
    pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(600),
    pytest.mark.skipif("PRORL_CHAOS_SEEDS" not in os.environ, reason="minutes: `make soak` plays it"),
]  # fmt: skip
STEPS = 20
ALLOCATIONS = 4
STEP_S = 0.1
JOB = JobRef("default:chaos:long-0:0")


async def turns(walker: Walker, count: int) -> None:
    async with asyncio.timeout(60):
        while walker.finished().total() < count:
            await asyncio.sleep(0.02)


async def end_allocation(world: World, node: int) -> None:
    """SIGTERM to every worker of a node, as before a limit of time; all of them end by themselves."""
    ending = [world.workers[f"{stage}-{node}"] for stage in (Stage.RUN, Stage.INIT)]
    for process in ending:
        process.terminate()
    for process in ending:
        assert await asyncio.to_thread(process.wait, 30) == 0


async def in_state(store: Store, state: State) -> None:
    async with asyncio.timeout(60):
        while (found := (await jobs.read(store, [JOB]))[0]) is None or found.state != state:
            await asyncio.sleep(0.02)


async def assert_walked_once(walker: Walker, store: Store) -> list[str]:
    """Its reward says that each step was taken once in the world that it ended in. Answers its time line."""
    [record] = await gather(store, None, 1, within_s=120)
    await trajectories(store, [record])
    prompts = {prompt: count for prompt, count in walker.finished().items() if len(prompt) > 1}  # not a probe's
    assert set(prompts.values()) == {1}, f"a turn was sampled twice: {record.timelines}"
    assert len(prompts) == STEPS + 1
    assert await acknowledge_all(store) == 1
    await assert_nothing_left(store)
    return list(record.timelines.values())


async def test_a_rollout_goes_on_over_allocations_that_end_again_and_again(world: World) -> None:
    world.sandbox, world.handlers = "bubblewrap", "walk"
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker, slots=2, nodes=2)
        await submit.accept(store, "default", walks("long", 1, STEPS))
        for number in range(1, ALLOCATIONS + 1):
            await turns(walker, number * STEPS // (ALLOCATIONS + 1))
            async with asyncio.timeout(60):
                while not (lane := store.keys.lane((await jobs.read(store, [JOB]))[0].stream)).node:  # type: ignore[union-attr]
                    await asyncio.sleep(0.02)
            node = int(lane.node[1:])
            await end_allocation(world, node)
            for stage in (Stage.INIT, Stage.RUN):
                world.restart(f"{stage}-{node}")
        [line] = await assert_walked_once(walker, store)
        assert line.count("has all calls again") >= ALLOCATIONS - 1, "it has hardly moved"
        deaths = int(await store.read("HGET", store.keys.counters, "reclaims:reap") or 0)
        assert deaths == 0, "a worker was taken for dead"


async def test_a_paused_rollout_outlives_a_restart_of_everything(world: World) -> None:
    world.sandbox, world.handlers = "bubblewrap", "walk"
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker, slots=2, nodes=2)
        await submit.accept(store, "default", walks("long", 1, STEPS))
        await turns(walker, STEPS // 2)
        assert (await pause.pause(store, "run", "default:chaos", PauseOrder())).state == "pausing"
        await in_state(store, State.PAUSED)
        sampled = walker.finished().total()
        for name in [*world.workers, *world.apis]:
            world.kill(name)
        world.kill_redis()
        world.start_redis()
        for name in [*world.workers, *world.apis]:
            world.restart(name)
        await in_state(store, State.PAUSED)
        assert walker.finished().total() == sampled
        assert (await pause.resume(store, "run", "default:chaos")).jobs == 1
        [line] = await assert_walked_once(walker, store)
        assert "has all calls again" in line
