"""Several backends as processes of their own under load: balance, one joins, one dies, one slows down ten-fold."""

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.schema.items import Finish, Held
from prorl_mq.schema.messages import Outcome
from prorl_mq.store import pools as backends
from prorl_mq.testing.sampling import made_up_logprobs
from tests.pool.conftest import attempt, in_run, until
from tests.support.queue import POOL, Queue, count_of, record
from workers.stages.backends import Pools

pytestmark = pytest.mark.anyio
TURNS = 3


class Backend:
    """One process."""

    def __init__(self, process: "subprocess.Popen[str]", address: str) -> None:
        self.process = process
        self.address = address

    async def program(self, **settings: object) -> None:
        async with httpx.AsyncClient(trust_env=False) as http:
            (await http.post(f"{self.address}/fake", json=settings)).raise_for_status()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def processes() -> Iterator[list[Backend]]:
    argv = [sys.executable, "-m", "prorl_mq.testing.fake_backend", "--latency-ms", "20", "--slots", "64"]
    started = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    made = [Backend(process, process.stdout.readline().strip()) for process in started if process.stdout]
    yield made
    for backend in made:
        backend.end()


class Rollouts:
    """Jobs of a few turns each, always as many at a time; every one is finished once, and its tokens are checked."""

    def __init__(self, queue: Queue, pools: Pools) -> None:
        self.queue, self.pools = queue, pools
        self.done = 0
        self.by_backend: Counter[str] = Counter()
        self._groups = 0
        self._random = random.Random(7)

    async def run(self, jobs: int, at_once: int) -> None:
        slots = asyncio.Semaphore(at_once)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(jobs // 4):
                self._groups += 1
                for held in await in_run(self.queue, f"g{self._groups}", n=4):
                    await slots.acquire()
                    tasks.create_task(self._job(held)).add_done_callback(lambda _task: slots.release())

    async def _job(self, held: Held) -> None:
        policy = attempt(self.pools, held)
        prompt = [count_of(held.token) % 997, *range(32)]
        for _ in range(TURNS):
            answer = await policy.generate(prompt, max_tokens=self._random.randint(1, 8), temperature=1.0, seed=1)
            assert list(answer.logprobs) == made_up_logprobs(answer.ids)
            prompt = [*prompt, *answer.ids, 5]
        self.by_backend[answer.backend] += 1
        assert await self.queue.store.finish([Finish(held, Outcome.COMPLETED, record(held.ref))]) == ["finished"]
        self.done += 1


@asynccontextmanager
async def watched(queue: Queue, pools: Pools, control) -> AsyncIterator[None]:
    """The loops of a worker and of an API process."""
    health = BackendHealth(queue.store, control, every_s=0.1)

    async def probing() -> None:
        while True:
            await asyncio.sleep(await health.turn())

    tasks = [asyncio.create_task(probing()), asyncio.create_task(pools.calls.run())]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def counts(queue: Queue) -> dict[str, int]:
    return {shown.address: shown.in_flight for shown in await backends.listing(queue.store, POOL)}


@pytest.mark.timeout(240)
async def test_no_job_is_lost_and_no_count_remains_whatever_happens_to_backends(
    queue: Queue, pools: Pools, control, processes: list[Backend]
) -> None:
    first, second, third, late = processes
    for backend in (first, second, third):
        await backends.add(queue.store, POOL, backend.address, protocol="vllm-generate")
    rollouts = Rollouts(queue, pools)
    async with watched(queue, pools, control):
        await rollouts.run(48, at_once=12)
        even = rollouts.by_backend
        assert set(even) == {first.address, second.address, third.address}
        assert min(even.values()) >= 8, even

        load = asyncio.create_task(rollouts.run(120, at_once=12))
        await until(lambda: _done(rollouts, 60))
        first.end()  # with calls under way
        await backends.add(queue.store, POOL, late.address, protocol="vllm-generate")
        await second.program(latency_ms=200)
        await load
        assert rollouts.done == 168
        assert rollouts.by_backend[late.address] > 0

        rollouts.by_backend.clear()
        await rollouts.run(60, at_once=12)
        slow, quick = rollouts.by_backend[second.address], rollouts.by_backend[third.address]
        assert slow < quick, "the slow one gets fewer, since it gives fewer back"
        assert rollouts.by_backend[first.address] == 0

        async def found_dead() -> bool:
            shown = {each.address: each for each in await backends.listing(queue.store, POOL)}
            return not shown[first.address].alive

        await until(found_dead)
    assert rollouts.done == 228
    assert set((await counts(queue)).values()) == {0}
    assert await queue.command("ZCARD", queue.keys.leases) == 0


async def _done(rollouts: Rollouts, count: int) -> bool:
    return rollouts.done >= count
