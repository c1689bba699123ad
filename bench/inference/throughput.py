"""What our code costs on the way to a backend: the same requests with it, and over the same HTTP client without it.

With it: a policy of its own for each job, a backend from the heap in a real Redis at its first call, requests encoded,
answers decoded and checked. Without it: bodies that were encoded before, posted by the same transport; answers are not
even read. Both talk to one vLLM, in turns, and the rounds alternate which goes first.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from prorl_mq.schema.items import Advance, Claim, Held
from prorl_mq.schema.messages import Stage
from prorl_mq.store import pools
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import POOL, Queue, spec
from workers.inference.clients import InferenceClients
from workers.inference.protocols.answers import require_ok
from workers.inference.protocols.vllm_generate import ROUTE
from workers.stages.backends import Pools
from workers.stages.work import Work

TOKENS = 32
TURNS = 8  # of a job: its backend is assigned at the first one
PROMPT_TOKENS = 64
Request = Callable[[], Awaitable[None]]


def prompt_of(job: int, turn: int) -> list[int]:
    return [(job * 7919 + turn * 104729 + place * 31) % 1000 + 20 for place in range(PROMPT_TOKENS)]


def sampling_of(job: int, turn: int) -> dict[str, Any]:
    return {"max_tokens": TOKENS, "temperature": 1.0, "seed": job * TURNS + turn}


class Ours:
    """Jobs in RUN, as a worker has them."""

    def __init__(self, redis: RedisSettings, clients: InferenceClients, address: str) -> None:
        self._client = connect(redis)
        self.keys = Keys(redis.namespace)
        self._queue = Queue(self._client, self.keys)
        self.worker = self._queue.store.name  # who holds the jobs
        self._pools = Pools(self._queue.store, clients)
        self._address = address
        self._groups = 0

    async def prepare(self) -> None:
        await self._queue.prepare()
        await pools.add(self._queue.store, POOL, self._address)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def held(self, count: int) -> list[Held]:
        """So many jobs, leased."""
        self._groups += 1
        name = f"g{self._groups}"
        await self._queue.admitted(name, batch=name, n=count)
        for held in await self._queue.take(Stage.INIT, count=count):
            await self._queue.store.advance([Advance(held, None, b"")])
        return await self._queue.take(Stage.RUN, count=count)

    async def give_back(self, jobs: list[Held]) -> None:
        await self._queue.store.release(jobs)
        await self._queue.command("DEL", self._queue.keys.stage(Stage.RUN))
        await self._queue.prepare()

    def jobs(self, held: list[Held]) -> Iterator[list[Request]]:
        """The turns of each job."""
        for number, each in enumerate(held):
            policy = self._pools.policy(Work(held=each, claim=Claim("claimed", each.token), spec=spec()))

            def turn(turn: int, number: int = number, policy: Any = policy) -> Request:
                async def ask() -> None:
                    await policy.generate(prompt_of(number, turn), **sampling_of(number, turn))

                return ask

            yield [turn(each) for each in range(TURNS)]


def direct(clients: InferenceClients, address: str, model: str, count: int) -> Iterator[list[Request]]:
    """The same requests, ready to be sent."""
    for number in range(count):

        def turn(turn: int, number: int = number) -> Request:
            body = msgspec.json.encode({
                "request_id": f"direct-{time.monotonic_ns()}-{number}-{turn}", "model": model,
                "token_ids": prompt_of(number, turn), "sampling_params": {**sampling_of(number, turn), "logprobs": 0},
            })  # fmt: skip

            async def ask() -> None:
                require_ok(address, ROUTE, await clients.transport.post(address, ROUTE, body, repeatable=True))

            return ask

        yield [turn(each) for each in range(TURNS)]


async def timed(jobs: list[list[Request]], concurrency: int) -> dict[str, float]:
    """Runs jobs, so many at once, each one turn after another."""
    waiting = iter(jobs)

    async def work() -> None:
        for turns in waiting:
            for ask in turns:
                await ask()

    started, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    requests = sum(map(len, jobs))
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    return {"requests_s": requests / seconds, "client_cpu_ms": 1e3 * cpu_s / requests}


async def compare(
    redis: RedisSettings, address: str, model: str, *, rounds: int, jobs: dict[int, int]
) -> list[dict[str, Any]]:
    """One row for each side of each round; `jobs` says how many at which concurrency."""
    rows: list[dict[str, Any]] = []
    async with InferenceClients() as clients:
        ours = Ours(redis, clients, address)
        await ours.prepare()

        async def once(side: str, concurrency: int) -> dict[str, float]:
            if side == "direct":
                return await timed(list(direct(clients, address, model, jobs[concurrency])), concurrency)
            held = await ours.held(jobs[concurrency])
            try:
                return await timed(list(ours.jobs(held)), concurrency)
            finally:
                await ours.give_back(held)

        for concurrency in jobs:  # connections, and the backend's cache of these prompts
            await once("direct", concurrency)
            await once("ours", concurrency)
        for number in range(rounds):
            for concurrency in jobs:
                for side in ("direct", "ours")[:: 1 if number % 2 else -1]:
                    row = {"case": f"{side}, {concurrency} at once", "round": number}
                    rows.append(row | await once(side, concurrency))
        await ours.aclose()
    return rows
