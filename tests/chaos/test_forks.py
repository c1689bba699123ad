"""Forks of walks in real sandboxes whose workers die: each begins with its parent's turns, none is sampled again."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.messages import ForkOrder, GroupRecord, Stage, events
from prorl_mq.schema.trajectory import INHERITED, ForkedFrom, Trajectory
from prorl_mq.schema.turns import TURN as TURN_RECORD
from prorl_mq.service import fork, submit
from prorl_mq.store import jobs
from prorl_mq.store.store import Store
from tests.support.service import acknowledge_all, assert_nothing_left, gather, store_of, until
from tests.support.walk import Walker, kill_on, started, trajectories, walks
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(600)]
KIND = os.environ.get("PRORL_CHAOS_KINDS", "bubblewrap").split(",")[0]
STEPS, TURN, CHILDREN = 8, 3, 2
STEP_S = 0.1
PROBE = 100  # tokens: a prompt that is shorter is one of a health check
PARENT = JobRef("default:chaos:walk-0:0")


def ids(trajectory: Trajectory) -> list[list[int]]:
    return [[*segment.prompt_ids, *segment.response_ids] for segment in trajectory.segments]


def trained(trajectory: Trajectory) -> int:
    return sum(sum(segment.loss_mask) for segment in trajectory.segments)


async def test_forks_of_a_walk_begin_with_its_turns_and_are_continued_where_their_workers_die(world: World) -> None:
    """While it is under way, and, with its batch given again, when its group has closed."""
    world.sandbox, world.handlers = KIND, "walk"
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker, slots=CHILDREN + 1)
        batch = walks("walk", 1, STEPS)
        await submit.accept(store, "default", batch)

        async def logged() -> bool:
            """The calls of the turn are answered; notes of checkpoints are between the records of turns."""
            [job] = await jobs.read(store, [PARENT])
            turns = [each for each in await jobs.log(store, PARENT) if each[:1] == TURN_RECORD]
            return job is not None and (len(turns) > 2 * TURN + 1 or job.stage is Stage.EVAL)

        await until(logged, within_s=120)
        made = await fork.fork(store, PARENT, ForkOrder(turn=TURN, n=CHILDREN, name="tree", batch=batch))
        assert (made.repeated, made.turn, len(made.jobs)) == (False, TURN, CHILDREN)
        killing = asyncio.create_task(kill_on(world, random.Random(7)))
        try:
            records = await gather(store, None, 2, within_s=300)
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        for name in ("run-0", "run-1"):
            world.thaw(name)
        again = await fork.fork(store, PARENT, ForkOrder(turn=TURN, n=1, name="late", batch=batch))
        assert again.shared_tokens == made.shared_tokens
        cursor_of = {record.batch_id: record for record in records}
        late = [each for each in await gather(store, None, 3, within_s=300) if each.batch_id == "late"]
        [parent] = (await trajectories(store, [cursor_of["walk"]])).values()
        children = await samples(store, [cursor_of["tree"], *late])
        assert len(children) == CHILDREN + 1
        for child in children:
            assert child.forked_from == ForkedFrom(job_id="chaos:walk-0:0", turn=TURN)
            assert [turn.left_out for turn in child.turns] == [INHERITED] * (TURN + 1) + [""] * (STEPS - TURN)
            assert ids(child) == ids(parent), "the policy says the same where it is asked the same"
            assert trained(child) == trained(parent) - made.shared_tokens
        deaths = int(await store.read("HGET", store.keys.counters, "reclaims:reap") or 0)
        given = Counter({prompt: count for prompt, count in walker.finished().items() if len(prompt) > PROBE})
        once = [prompt for prompt in given if given[prompt] == 1]
        assert len(once) >= TURN, "what is shared was sampled once"
        own = STEPS + 1 + (CHILDREN + 1) * (STEPS - TURN)
        assert own <= given.total() <= own + deaths
        assert await acknowledge_all(store) == 3
        await assert_nothing_left(store)


async def test_forks_begin_in_copies_of_a_sandbox_that_lives(world: World) -> None:
    """While its policy is asked, a walk rests; each fork continues in a copy, and none of its calls is made again."""
    world.sandbox, world.handlers = KIND, "walk"
    async with store_of(world) as store, (walker := Walker(0.0)).backend:
        await started(world, store, walker, slots=CHILDREN + 1)
        walker.backend.latency_ms = 50
        batch = walks("walk", 1, STEPS)
        await submit.accept(store, "default", batch)

        async def turns() -> int:
            return sum(each[:1] == TURN_RECORD for each in await jobs.log(store, PARENT))

        async def logged() -> bool:
            return await turns() > 2 * TURN + 1

        await until(logged, within_s=120)
        await walker.backend.pause()

        async def rests() -> bool:
            return bool(walker.backend.running) and await turns() % 2 == 0

        await until(rests, within_s=60)
        made = await fork.fork(
            store, PARENT, ForkOrder(turn=await turns() // 2 - 1, n=CHILDREN, name="tree", batch=batch)
        )

        async def begun() -> bool:
            return walker.backend.running == CHILDREN + 1

        await until(begun, within_s=60)
        walker.backend.latency_ms = 2000
        walker.backend.resume()
        copied = f"those up to turn {made.turn} from the sandbox of chaos:walk-0:0"

        async def told() -> bool:
            """Once they act: a sandbox is noted to have all calls before the next one."""
            lines = [await jobs.timeline(store, JobRef(f"default:{job}")) for job in made.jobs]
            said = [
                [each.detail or "" for each in events(job, line)] for job, line in zip(made.jobs, lines, strict=True)
            ]
            return all(any(copied in each for each in details) for details in said)

        await until(told, within_s=60)
        walker.backend.latency_ms = 0
        records = {each.batch_id: each for each in await gather(store, None, 2, within_s=300)}
        [parent] = (await trajectories(store, [records["walk"]])).values()
        for child in await samples(store, [records["tree"]]):
            assert ids(child) == ids(parent), "the parent's world is as it was, and each child's is like it"
        await acknowledge_all(store)


async def samples(store: Store, records: Sequence[GroupRecord]) -> list[Trajectory]:
    """Their trajectories; each sample has the reward of a walk on which every step was taken once."""
    found = []
    for record in records:
        for sample in record.samples:
            one = await trajectories(store, [replace(record, samples=[sample])])
            found += list(one.values())
    return found
