"""Attempts in RUN on a real Redis, and fake backends to call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from prorl_mq.duties.backend_control import BackendControl
from prorl_mq.schema.items import Advance, Claim, Held
from prorl_mq.schema.messages import Stage
from prorl_mq.store import pools as backends
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.server.tracking import tracked
from prorl_mq.testing.fake_backend import FakeBackend
from tests.support.queue import POOL, Queue, spec
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.run_clock import RunClock
from workers.stages.backends import Pools
from workers.stages.work import Work

PROMPT = [11, 12, 13, 14, 15]


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys) -> AsyncIterator[Queue]:
    client = connect(settings)
    made = Queue(client, keys)
    await made.prepare()
    yield made
    await client.aclose()


@pytest.fixture
async def clients() -> AsyncIterator[InferenceClients]:
    async with InferenceClients(connect_s=2, answer_s=60) as made:
        yield made


@pytest.fixture
async def control() -> AsyncIterator[BackendControl]:
    made = BackendControl()
    yield made
    await made.aclose()


@pytest.fixture
async def fakes() -> AsyncIterator[Callable[..., Awaitable[FakeBackend]]]:
    """Starts fake backends that end with the test."""
    async with AsyncExitStack() as stack:

        async def start(**about: Any) -> FakeBackend:
            return await stack.enter_async_context(FakeBackend(**about))

        yield start


@pytest.fixture
async def pools(queue: Queue, clients: InferenceClients, settings: RedisSettings) -> AsyncIterator[Pools]:
    """As a worker has them."""
    following = tracked(settings)
    yield Pools(queue.store, clients, tracked=following)
    await following.aclose()


async def joined(queue: Queue, *fakes: FakeBackend, **about: Any) -> None:
    for fake in fakes:
        await backends.add(queue.store, POOL, fake.address, protocol="vllm-generate", **about)


async def in_run(queue: Queue, group: str = "g", n: int = 1) -> list[Held]:
    """Jobs of one group, leased in RUN."""
    await queue.admitted(group, batch=group, n=n)
    for held in await queue.take(Stage.INIT, count=n):
        await queue.store.advance([Advance(held, None, b"")])
    return await queue.take(Stage.RUN, count=n)


def attempt(pools: Pools, held: Held, **about: Any) -> StickyPolicy:
    """The policy of one attempt."""
    return pools.policy(Work(held=held, claim=Claim("claimed", held.token), spec=spec(**about)), RunClock())


async def turn(policy: StickyPolicy, prompt: list[int] | None = None, tokens: int = 4, **more: Any) -> Any:
    return await policy.generate(prompt or PROMPT, max_tokens=tokens, temperature=1.0, seed=1, **more)


async def until(true: Callable[[], Awaitable[bool]], within_s: float = 20.0) -> None:
    """Waits for what another task or process brings about."""
    async with asyncio.timeout(within_s):
        while not await true():
            await asyncio.sleep(0.02)
