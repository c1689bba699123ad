"""Kills of a RUN worker that are aimed between what it logs and what it sends."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.schema.ids import JobRef
from prorl_mq.service import submit
from prorl_mq.store import jobs
from prorl_mq.store.store import Store
from sandbox.lifetime import label
from tests.support.service import acknowledge_all, assert_nothing_left, gather, store_of, until
from tests.support.walk import Walker, started, told, trajectories, walks
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(400)]
WALK, TURN, LENGTH, STEP_S = "w0", 2, 4, 0.8


class Target:
    """The worker of a walk whose completion of turn `TURN` is asked for, and not answered."""

    def __init__(self, world: World, store: Store, walker: Walker, batch: str) -> None:
        self.world, self.store, self.walker = world, store, walker
        self.ref = JobRef(f"default:chaos:{batch}-0:0")
        self.name = ""

    async def aim(self) -> None:
        backend = self.walker.backend
        async with asyncio.timeout(60):
            await backend.wait_until(lambda _: self.walker.asked.get(WALK) == TURN - 1)
            await backend.pause("wait")
            await backend.wait_until(lambda _: any(len(each.call.prompt_ids) > 1 for each in self.pending()))
        owner = await self.store.read("HGET", self.store.keys.job(self.ref), "owner")
        pids = {str(process.pid): name for name, process in self.world.workers.items()}
        self.name = pids[owner.decode().rpartition("-")[2]]

    def pending(self) -> list[Any]:
        return [each for each in self.walker.backend.requests if each.state == "running"]

    async def records(self) -> int:
        return len(await jobs.log(self.store, self.ref))

    def redis(self, number: signal.Signals) -> None:
        assert self.world.redis is not None
        self.world.redis.send_signal(number)

    def sandbox(self, number: signal.Signals) -> None:
        """To every process of it."""
        for directory in label.root(self.world.directory / "state").iterdir():
            made = label.read(directory)
            for pid in below(made.pid) if made is not None else ():
                os.kill(pid, number)

    async def before_the_log_has_the_completion(self) -> None:
        self.redis(signal.SIGSTOP)
        self.walker.backend.resume()
        await self.walker.backend.wait_until(lambda _: not self.pending())
        await asyncio.sleep(0.2)  # it is appended: sent, and never confirmed
        self.world.kill(self.name)
        self.redis(signal.SIGCONT)

    async def before_the_sandbox_has_the_call(self) -> None:
        self.sandbox(signal.SIGSTOP)
        await self.completion_logged()
        await asyncio.sleep(0.2)  # the call is sent, and never read before its sender's death
        self.world.kill(self.name)
        self.sandbox(signal.SIGCONT)

    async def during_the_call(self) -> None:
        await self.completion_logged()
        await asyncio.sleep(STEP_S / 4)
        self.world.kill(self.name)

    async def before_the_log_has_the_result(self) -> None:
        await self.completion_logged()
        await asyncio.sleep(STEP_S / 4)
        self.redis(signal.SIGSTOP)
        await asyncio.sleep(STEP_S + 0.3)
        self.world.kill(self.name)
        self.redis(signal.SIGCONT)

    async def completion_logged(self) -> None:
        known = await self.records()

        async def logged() -> bool:
            return await self.records() > known

        self.walker.backend.resume()
        await until(logged)


PLACES: list[Callable[[Target], Awaitable[None]]] = [
    Target.before_the_log_has_the_completion,
    Target.before_the_sandbox_has_the_call,
    Target.during_the_call,
    Target.before_the_log_has_the_result,
]
UNLOGGED = {PLACES[0], PLACES[3]}  # in the last one the completion behind the result: it is asked for without Redis


async def test_wherever_a_worker_dies_within_a_turn_its_rollout_is_the_undisturbed_one(world: World) -> None:
    """No step is taken twice, or the walk has no reward; a completion is sampled twice only if it was not logged."""
    world.sandbox, world.handlers = "bubblewrap", "walk"
    async with store_of(world) as store, (walker := Walker(STEP_S)).backend:
        await started(world, store, walker, slots=1)
        await submit.accept(store, "default", walks("calm", 1, LENGTH))
        calm = await trajectories(store, await gather(store, None, 1, within_s=60))
        await acknowledge_all(store)
        for number, place in enumerate(PLACES):
            walker.backend.requests.clear()
            walker.asked.clear()
            await submit.accept(store, "default", walks(place.__name__, 1, LENGTH))
            target = Target(world, store, walker, place.__name__)
            await target.aim()
            await place(target)
            found = await trajectories(store, await gather(store, None, 1, within_s=100))
            assert told(found[WALK]) == told(calm[WALK]), place.__name__
            twice = walker.finished().total() - len(walker.finished())
            assert twice <= (place in UNLOGGED), place.__name__
            assert int(await store.read("HGET", store.keys.counters, "reclaims:reap") or 0) == number + 1
            await acknowledge_all(store)
            world.restart(target.name)
        await assert_nothing_left(store)


def below(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for each in found:
        for listing in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, listing.read_text().split())
    return found
