"""Jobs are routed by task family: a worker takes what it can run, and no attempt of the rest is lost to it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from prorl_mq.clock import monotonic
from prorl_mq.duties.running import running
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import group_ref, job_ref, run_ref
from prorl_mq.schema.messages import BatchRequest, GroupRecord, GroupRequest, Limits, Stage, Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import inspect, submit
from prorl_mq.store import families, results, runs, work
from prorl_mq.store.server.connection import RedisSettings
from tests.support.queue import Queue
from tests.worker.conftest import queue
from tests.worker.stage import made, until
from workers.handler import Prepared, Ran, Score
from workers.inference.run_clock import RunClock
from workers.process.claims import Claims
from workers.process.worker import Worker
from workers.settings import WorkerSettings
from workers.stages.eval import EvalStage
from workers.stages.init import InitStage
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.stage import StageRunner
from workers.stages.work import Work

__all__ = ["queue"]
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

RUN = run_ref("default", "families")
OLD, NEW = "old", "new"


class Installed:
    """A task family whose stages do nothing."""

    schema = Schema()
    needs_sandbox = False

    def __init__(self, source: str) -> None:
        self.data_sources: Sequence[str] = (source,)

    async def init(self, _context: Any) -> Prepared:
        return Prepared()

    async def run(self, _context: Any) -> Ran:
        return Ran(trajectory=None, export=1)

    async def eval(self, _context: Any) -> Score:
        return Score(reward=1.0)


def stage_of(worker: Worker) -> StageRunner:
    stage, node = worker.settings.stage, worker.settings.node
    if stage is Stage.INIT:
        return InitStage(worker.registry, None, worker.store, node)
    if stage is Stage.RUN:
        return RunStage(worker.registry, None, worker.store, no_policy, node)
    return EvalStage(worker.registry, None, worker.store)


def no_policy(work: Work, clock: RunClock) -> Any:
    raise LookupError(f"{work.spec.data_source} asks no policy")


class Farm:
    """Workers of all three stages, in this process."""

    def __init__(self, settings: RedisSettings, stack: contextlib.AsyncExitStack, queue: Queue) -> None:
        self._settings = settings
        self._stack = stack
        self.store = queue.store
        self._running: dict[str, list[contextlib.AsyncExitStack]] = {}

    async def start(self, name: str, *sources: str) -> None:
        """One worker of each stage that has these families."""
        self._running[name] = [await self._one(name, stage, sources) for stage in Stage]

    async def stop(self, name: str) -> None:
        for each in self._running.pop(name):
            await each.aclose()

    async def announced(self, count: int) -> None:
        """Returns when so many workers have sent a heartbeat."""

        async def alive() -> bool:
            return int(await self.store.read("ZCARD", self.store.keys.workers)) == count

        await until(alive)

    async def _one(self, name: str, stage: Stage, sources: tuple[str, ...]) -> contextlib.AsyncExitStack:
        settings = WorkerSettings(
            stage=stage, redis=self._settings, slots=4, node=name, name=f"{stage}-{name}", sandbox="none",
            lease_ms=1_500, grace_ms=5_000,
        )  # fmt: skip
        stack = await self._stack.enter_async_context(contextlib.AsyncExitStack())
        worker = await stack.enter_async_context(made(settings, Registry([Installed(each) for each in sources])))
        task = asyncio.create_task(worker.run(stage_of(worker)))

        async def drain() -> None:
            worker.drain()
            await task

        stack.push_async_callback(drain)
        return stack

    async def submit(self, batch: str, source: str, groups: int, *, attempts: int = 1) -> None:
        """Groups of four jobs, each of which may be tried so often."""
        asked = [GroupRequest(task=Task(task_id=f"{place}", data_source=source), n=4) for place in range(groups)]
        limits = Limits(max_attempts=attempts, backoff_ms=10)
        request = BatchRequest(run_id="families", batch_id=batch, groups=asked, limits=limits)
        await submit.accept(self.store, "default", request)

    async def outcomes(self, groups: int) -> Counter[tuple[str, int]]:
        """How the jobs of so many groups ended, and at which attempt, from 0."""
        found: list[GroupRecord] = []
        after = "0"
        give_up = monotonic() + 90
        while len(found) < groups and monotonic() < give_up:
            for result in await results.collect(self.store, RUN, after=after, wait_ms=50):
                after = result.cursor
                found.append(decode(result.record, GroupRecord))
        return Counter((sample.outcome.value, sample.attempt) for each in found for sample in each.samples)


@pytest.fixture
async def farm(settings: RedisSettings, queue: Queue) -> AsyncIterator[Farm]:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(settings, name="api", lease_ms=1_500))
        yield Farm(settings, stack, queue)


async def test_two_workers_of_which_one_lacks_the_family_lose_no_attempt(farm: Farm) -> None:
    await farm.start("without", OLD)
    await farm.start("with", OLD, NEW)
    await farm.announced(6)
    await farm.submit("new", NEW, 50)
    await farm.submit("old", OLD, 10)
    assert await farm.outcomes(60) == {("completed", 0): 240}


async def test_without_routing_the_worker_that_lacks_the_family_fails_its_jobs(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above."""

    async def all_of_them(_claims: Claims, read: Any, _groups: Any) -> Any:
        return read.entries

    monkeypatch.setattr(Claims, "_diverted", all_of_them)
    monkeypatch.setattr(families.Abilities, "divided", lambda *_: False)
    await farm.start("without", OLD)
    await farm.start("with", OLD, NEW)
    await farm.announced(6)
    await farm.submit("new", NEW, 10)
    assert (await farm.outcomes(10))["infra_error", 0] > 0


async def test_a_family_that_nobody_has_waits_and_says_so_and_a_worker_that_joins_drains_it(farm: Farm) -> None:
    """Nobody else is kept waiting; the lanes go when nobody lacks the family any more."""
    store = farm.store
    await work.enroll(store, {NEW: Schema()}, None)
    await farm.start("without", OLD)
    await farm.announced(3)
    await farm.submit("new", NEW, 20)
    await farm.submit("old", OLD, 5)
    assert await farm.outcomes(5) == {("completed", 0): 20}
    said = "waits: no living init worker has the task family 'new'"
    assert (await runs.status(store, RUN)).why.startswith(said)
    ref = job_ref(group_ref(RUN, "new-0"), 0)
    assert said in (await inspect.job_status(store, ref)).why
    await farm.start("with", OLD, NEW)
    await farm.stop("without")
    assert await farm.outcomes(25) == {("completed", 0): 100}

    async def retired() -> bool:
        return await families.look(store) == frozenset()

    await until(retired)
    assert [key for key in await store.read("KEYS", "*") if b"#" in key] == []


async def test_a_rolling_install_and_its_way_back_lose_no_attempt(farm: Farm) -> None:
    for name in ("a", "b"):
        await farm.start(name, OLD)
    await farm.announced(6)
    await work.enroll(farm.store, {NEW: Schema()}, None)
    for number, name in enumerate(("a", "b", "a")):
        await farm.submit(f"new-{number}", NEW, 10)
        await farm.submit(f"old-{number}", OLD, 10)
        await farm.stop(name)
        await farm.start(name, *((OLD, NEW) if number < 2 else (OLD,)))
    assert await farm.outcomes(60) == {("completed", 0): 240}
