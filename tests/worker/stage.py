"""A worker whose stage does what a test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from prorl_mq.schema.items import Finish
from prorl_mq.schema.messages import Outcome
from prorl_mq.schema.messages import Stage as StageName
from prorl_mq.schema.task_schema import Schema
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import Queue, record
from workers.process.worker import Worker
from workers.settings import WorkerSettings
from workers.stages.registry import Registry
from workers.stages.work import Move, Undo, Work

Act = Callable[[Work], Awaitable[Move]]


class Named:
    """A task family that is a name: its stages are `Acting`."""

    schema = Schema(open_ended=True)
    needs_sandbox = False

    def __init__(self, *sources: str) -> None:
        self.data_sources: Sequence[str] = sources

    async def init(self, context: Any) -> Any:
        raise NotImplementedError

    async def run(self, context: Any) -> Any:
        raise NotImplementedError

    async def eval(self, context: Any) -> Any:
        raise NotImplementedError


SUMS = Registry([Named("sums")])  # the family of what `Queue` submits


class Acting:
    """A stage made of one function; it knows which jobs it has begun."""

    def __init__(self, act: Act) -> None:
        self._act = act
        self.begun: list[str] = []

    async def perform(self, work: Work) -> Move:
        self.begun.append(work.held.ref)
        return await self._act(work)


def finished(work: Work, undo: Undo | None = None) -> Move:
    """The job is completed."""
    return Move(item=Finish(work.held, Outcome.COMPLETED, record(work.held.ref)), undo=undo)


async def finish(work: Work) -> Move:
    return finished(work)


async def endless(_work: Work) -> Move:
    """Runs until it is cancelled."""
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


def options(settings: RedisSettings, **more: Any) -> WorkerSettings:
    """Of an INIT worker without sandboxes, unless another `stage` is given."""
    about = {
        "stage": StageName.INIT,
        "name": "w1",
        "node": "n1",
        "sandbox": "none",
        "lease_ms": 60_000,
        "grace_ms": 0,
        "slots": 4,
        **more,
    }
    return WorkerSettings(redis=settings, **about)


@contextlib.asynccontextmanager
async def made(settings: WorkerSettings, registry: Registry = SUMS) -> AsyncIterator[Worker]:
    """A worker that does not run yet."""
    redis = connect(settings.redis, wired=True)
    try:
        yield Worker(settings, registry, redis)
    finally:
        await redis.aclose()


@contextlib.asynccontextmanager
async def working(settings: WorkerSettings, stage: Acting, registry: Registry = SUMS) -> AsyncIterator[Worker]:
    """A worker that runs, and is drained at the end."""
    async with made(settings, registry) as worker:
        task = asyncio.create_task(worker.run(stage))
        try:
            yield worker
        finally:
            worker.drain()
            await task


async def until(true: Callable[[], bool | Awaitable[Any]], *, within_s: float = 20.0) -> None:
    """Waits for what another task or process brings about."""
    async with asyncio.timeout(within_s):
        while not (await found if isinstance(found := true(), Awaitable) else found):
            await asyncio.sleep(0.01)


async def states(queue: Queue, jobs: list[Any]) -> set[str]:
    """The states that these jobs are in."""
    return {(await queue.command("HGET", queue.keys.job(job), "state")).decode() for job in jobs}
