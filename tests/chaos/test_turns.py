"""Workers die at any moment of rollouts with many turns: none is started again, no call is sent twice."""

import asyncio
import os
import random
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.schema.turns import PART, LoggedPart, read_record, unpack_tokens
from prorl_mq.service import submit
from prorl_mq.store import jobs
from tests.support.service import acknowledge_all, assert_nothing_left, gather, store_of, until
from tests.support.walk import Walker, kill_on, lose_on, started, told, trajectories, walks
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(900)]

KINDS = os.environ.get("PRORL_CHAOS_KINDS", "bubblewrap").split(",")
WALKS = int(os.environ.get("PRORL_CHAOS_WALKS", "12"))
STEPS = int(os.environ.get("PRORL_CHAOS_STEPS", "12"))
SEED = int(os.environ.get("PRORL_CHAOS_SEEDS", "7").split(",")[0])
STEP_S = 0.15


@pytest.mark.parametrize("kind", KINDS)
async def test_walks_go_on_where_their_workers_died(world: World, kind: str) -> None:
    world.sandbox, world.handlers = kind, "walk"
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker, slots=WALKS)
        await submit.accept(store, "default", walks("calm", WALKS, STEPS))
        calm = await trajectories(store, await gather(store, None, WALKS, within_s=200))
        assert await acknowledge_all(store) == WALKS
        undisturbed = walker.finished()
        walker.backend.requests.clear()

        await submit.accept(store, "default", walks("killed", WALKS, STEPS))
        killing = asyncio.create_task(kill_on(world, random.Random(SEED)))
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


@pytest.mark.parametrize("kind", KINDS)
async def test_walks_continue_on_another_node_where_theirs_is_lost(world: World, kind: str) -> None:
    """Nothing is sampled again but what was under way: their calls are made again in new sandboxes."""
    world.sandbox, world.handlers = kind, "walk"
    count, steps = WALKS // 2, 2 * STEPS
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker, slots=4, nodes=2)
        await submit.accept(store, "default", walks("calm", count, steps))
        calm = await trajectories(store, await gather(store, None, count, within_s=200))
        assert await acknowledge_all(store) == count
        undisturbed = walker.finished()
        walker.backend.requests.clear()

        await submit.accept(store, "default", walks("lost", count, steps))
        losing = asyncio.create_task(lose_on(world, walker, times=2, turns=6 * STEPS // 2))
        try:
            records = await gather(store, None, count, within_s=500)
        finally:
            losing.cancel()
        for name, each in (await trajectories(store, records)).items():
            assert told(each) == told(calm[name]), name
        told_of = [line for record in records for line in record.timelines.values()]
        assert any("has all calls again" in line and "from a checkpoint" in line for line in told_of)
        again = (walker.finished() - undisturbed).total()
        moved = int(await store.read("HGET", store.keys.counters, "reclaims:evacuate") or 0)
        deaths = int(await store.read("HGET", store.keys.counters, "reclaims:reap") or 0)
        assert moved > 0, "nothing was disturbed"
        assert again <= deaths, "more was sampled twice than what was under way"
        assert await acknowledge_all(store) == count
        await assert_nothing_left(store)


@pytest.mark.parametrize("continues", [True, False])
async def test_a_worker_that_is_killed_within_a_completion_costs_what_came_since_its_last_part(
    world: World, *, continues: bool
) -> None:
    """Without the option, the control: all of the completion is sampled again."""
    world.handlers = "walk"
    world.sandbox = "bubblewrap"
    async with store_of(world) as store, (walker := Walker(0.0)).backend:
        await started(world, store, walker, slots=1)
        await submit.accept(store, "default", walks("calm", 1, 1))
        calm = await trajectories(store, await gather(store, None, 1, within_s=60))
        await acknowledge_all(store)
        walker.backend.token_ms, flow, calm_asked = 75, walker.backend.flow, 2
        await submit.accept(store, "default", walks("cut", 1, 1, seed=None, continue_generation=continues))
        ref = JobRef("default:chaos:cut-0:0")

        def asked() -> list[Sequence[int]]:
            """By no probe."""
            prompts = [each.call.prompt_ids for each in walker.backend.requests]
            return [prompt for prompt in prompts if len(prompt) > 1]

        def parts(records: Sequence[bytes]) -> int:
            abouts = [read_record(each[1:], LoggedPart).about for each in records if each[:1] == PART]
            return sum(len(unpack_tokens(about)[0]) for about in abouts)

        async def logged() -> bool:
            return bool(parts(await jobs.log(store, ref))) if continues else len(asked()) > calm_asked

        await until(logged, within_s=60)
        kept, sent = parts(await jobs.log(store, ref)), flow.sent
        owner = (await store.read("HGET", store.keys.job(ref), "owner")).decode()
        pids = {str(world.workers[name].pid): name for name in ("run-0", "run-1")}
        name = pids[owner.rpartition("-")[2]]
        world.kill(name)
        await walker.backend.wait_running(0)
        lost = flow.sent - kept
        walker.backend.token_ms = 0
        found = await trajectories(store, await gather(store, None, 1, within_s=60))
        assert told(found["w0"]) | {"segments": None} == told(calm["w0"]) | {"segments": None}
        [cut], [uncut] = found["w0"].segments, calm["w0"].segments
        assert replace(cut, spans=()) == replace(uncut, spans=())
        if continues:
            assert kept > 20
            assert kept <= sent
            assert flow.sent - sum(uncut.loss_mask) == lost < kept
        else:
            assert flow.sent == 0, "nothing was streamed"
            assert asked()[-3] == asked()[-2], "all of it was sampled a second time"


async def test_a_follower_sees_each_turn_once_whatever_becomes_of_the_worker(world: World) -> None:
    world.sandbox, world.handlers = "bubblewrap", "walk"
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker, slots=2)
        transport = httpx.AsyncHTTPTransport(uds=str(world.directory / "api-0.sock"), retries=6)
        async with httpx.AsyncClient(transport=transport, base_url="http://api", timeout=60) as api:
            await submit.accept(store, "default", walks("seen", 1, 8))
            seen: list[dict[str, Any]] = []
            rollouts, dead = set(), ""

            async def look() -> dict[str, Any]:
                answer = await api.get("/v1/jobs/chaos:seen-0:0/log", params={"after": len(seen), "limit": 3})
                assert answer.status_code == 200, answer.text
                page: dict[str, Any] = answer.json()
                assert page["turns"] == [] or page["turns"][0]["number"] == len(seen)
                rollouts.add(page["rollout"])
                seen.extend(page["turns"])
                return page

            async with asyncio.timeout(150):
                while not (await look())["complete"]:
                    if not dead and len(seen) >= 3:
                        owner = (await api.get("/v1/jobs/chaos:seen-0:0")).json()["owner"]
                        pids = {str(world.workers[name].pid): name for name in ("run-0", "run-1")}
                        dead = pids.get((owner or "").rpartition("-")[2], "")
                    if dead and world.workers[dead].returncode is None:
                        world.kill(dead)
                        await look()  # of a worker that is dead
                        assert len(seen) >= 3
                    await asyncio.sleep(0.05)
            whole, seen = seen, []
            while not (await look())["complete"]:
                pass
        assert seen == whole
        assert [turn["number"] for turn in whole] == list(range(9))
        assert len(rollouts - {""}) == 1
        found = await trajectories(store, await gather(store, None, 1, within_s=60))
        assert [turn["ids"] for turn in whole] == [list(ids) for ids in sampled(found["w0"])]
        deaths = int(await store.read("HGET", store.keys.counters, "reclaims:reap") or 0)
        assert deaths == 1


def sampled(trajectory: Trajectory) -> list[Sequence[int]]:
    [segment] = trajectory.segments
    starts = [turn.prompt_tokens - len(segment.prompt_ids) for turn in trajectory.turns]
    return [
        segment.response_ids[start : start + turn.completion_tokens]
        for start, turn in zip(starts, trajectory.turns, strict=True)
    ]


@pytest.mark.skipif("PRORL_CHAOS_SEEDS" not in os.environ, reason="minutes: `make soak` plays this control")
@pytest.mark.parametrize("kind", KINDS)
async def test_without_names_steps_are_taken_twice(world: World, kind: str) -> None:
    """The control: a second attempt then repeats what the first one had begun."""
    world.sandbox, world.handlers = kind, "walk_unnamed"
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker, slots=6)
        await submit.accept(store, "default", walks("unnamed", 6, 10, "walk-unnamed"))
        killing = asyncio.create_task(kill_on(world, random.Random(SEED)))
        try:
            records = await gather(store, None, 6, within_s=300)
        finally:
            killing.cancel()
        assert [sample.reward for record in records for sample in record.samples].count(0.0) > 0


@pytest.mark.skipif("PRORL_CHAOS_SEEDS" not in os.environ, reason="minutes: `make soak` plays this control")
@pytest.mark.parametrize("kind", KINDS)
async def test_without_a_log_a_lost_node_costs_all_turns(world: World, kind: str) -> None:
    """The control: what was sampled before is sampled again."""
    world.sandbox, world.handlers = kind, "walk_again"
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker, slots=4, nodes=2)
        await submit.accept(store, "default", walks("again", 6, 2 * STEPS, "walk-again"))
        losing = asyncio.create_task(lose_on(world, walker, times=2, turns=6 * STEPS // 2))
        try:
            await gather(store, None, 6, within_s=500)
        finally:
            losing.cancel()
        deaths = int(await store.read("HGET", store.keys.counters, "reclaims:reap") or 0)
        given = walker.finished()
        assert given.total() - len(given) > deaths
