"""Workers die at any moment of rollouts with many turns: none is started again, no call is sent twice."""

import asyncio
import os
import random

import pytest

from prorl_mq.schema.messages import Stage
from prorl_mq.service import submit
from prorl_mq.store import pools, streams
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import patiently
from prorl_mq.store.store import Store
from tests.support.service import acknowledge_all, assert_nothing_left, gather, store_of, until
from tests.support.walk import Walker, told, trajectories, vocabulary, walks
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(900)]

KINDS = os.environ.get("PRORL_CHAOS_KINDS", "bubblewrap").split(",")
WALKS = int(os.environ.get("PRORL_CHAOS_WALKS", "12"))
STEPS = int(os.environ.get("PRORL_CHAOS_STEPS", "12"))
SEED = int(os.environ.get("PRORL_CHAOS_SEEDS", "7").split(",")[0])
STEP_S = 0.15


async def started(world: World, store: Store, walker: Walker) -> None:
    """One node with two workers in RUN."""
    (world.directory / "state").mkdir(mode=0o755)
    world.directory.chmod(0o755)
    world.env |= vocabulary(world.directory / "model")
    world.start_redis()
    await patiently(lambda: fitness.start_up(store.redis), outage_ms=20_000)
    await patiently(lambda: streams.ensure(store.redis, streams.shared(store.keys)), outage_ms=20_000)
    await pools.add(store, "default:policy", walker.backend.address)
    world.start_api(0)
    for stage, count in ((Stage.INIT, 1), (Stage.RUN, 2), (Stage.EVAL, 1)):
        for number in range(count):
            world.start_worker(stage, number, "--slots", str(WALKS))

    async def known() -> bool:
        return int(await store.read("ZCARD", store.keys.workers)) >= 4

    await until(known, within_s=60)


async def kill_on(world: World, store: Store, rng: random.Random) -> None:
    """Kills a RUN worker, or stops it until its lease is long over, then does the same to the other one."""
    name = "run-0"
    while True:
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        name = "run-1" if name == "run-0" else "run-0"
        if rng.random() < 0.6:
            world.kill(name)
            world.restart(name)
        else:
            world.freeze(name)
            await asyncio.sleep(3 * world.lease_ms / 1000)
            world.thaw(name)
        await asyncio.sleep(1.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_walks_go_on_where_their_workers_died(world: World, kind: str) -> None:
    world.sandbox, world.handlers = kind, "walk"
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker)
        await submit.accept(store, "default", walks("calm", WALKS, STEPS))
        calm = await trajectories(store, await gather(store, None, WALKS, within_s=200))
        assert await acknowledge_all(store) == WALKS
        undisturbed = walker.finished()
        walker.backend.requests.clear()

        await submit.accept(store, "default", walks("killed", WALKS, STEPS))
        killing = asyncio.create_task(kill_on(world, store, random.Random(SEED)))
        try:
            records = await gather(store, None, WALKS, within_s=500)
        finally:
            killing.cancel()
        killed = await trajectories(store, records)
        assert killed.keys() == calm.keys()
        for name, each in killed.items():
            assert told(each) == told(calm[name]), name
        again = (walker.finished() - undisturbed).total()
        deaths = int(await store.read("HGET", store.keys.counters, "reclaims:reap") or 0)
        assert deaths > 0, "nothing was disturbed"
        assert again <= deaths, "more was sampled twice than what was under way"
        assert await acknowledge_all(store) == WALKS
        await assert_nothing_left(store)
