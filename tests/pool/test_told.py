"""Redis tells a worker that a pool has changed: it neither asks again nor misses a change."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from prorl_mq.rules import breaker
from prorl_mq.store import pools as backends
from prorl_mq.store.server import acl
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.store.server.tracking import TrackedRedis, tracked
from tests.pool.conftest import until
from tests.support.queue import POOL, Queue
from workers.inference.clients import InferenceClients
from workers.stages import backends as stages
from workers.stages.backends import Pools

pytestmark = pytest.mark.anyio
FIRST, SECOND = "http://127.0.0.1:1001", "http://127.0.0.1:1002"


class Told:
    """The pools of one worker, and how often they were read."""

    def __init__(self, queue: Queue, clients: InferenceClients, following: TrackedRedis | None) -> None:
        self.queue, self.following = queue, following
        self.pools = Pools(queue.store, clients, tracked=following)
        self.reads = 0

    async def addresses(self) -> set[str]:
        return set((await self.pools.view(POOL)).backends)

    async def seen(self, *addresses: str) -> None:
        """Returns once these are the pool's backends, and no others."""
        await until(lambda: self._are(set(addresses)))

    async def _are(self, addresses: set[str]) -> bool:
        return await self.addresses() == addresses


@pytest.fixture
async def told(
    queue: Queue, clients: InferenceClients, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Told]:
    """Nothing is read again for its age: what is seen again was told."""
    monkeypatch.setattr(stages, "FRESH_S", 3600.0)
    following = tracked(settings)
    made, read = Told(queue, clients, following), backends.view

    async def counted(*given: Any) -> backends.PoolView:
        made.reads += 1
        return await read(*given)

    monkeypatch.setattr(backends, "view", counted)
    await backends.add(queue.store, POOL, FIRST)
    assert await made.addresses() == {FIRST}
    yield made
    await following.aclose()


CHANGES: list[Callable[[Queue], Any]] = [
    lambda queue: backends.add(queue.store, POOL, SECOND),
    lambda queue: backends.remove(queue.store, POOL, FIRST, drain=False),
    lambda queue: backends.observe(queue.store, POOL, FIRST, breaker.CLOSED, backends.call_failed),
    lambda queue: backends.observe(queue.store, POOL, FIRST, breaker.CLOSED, backends.call_succeeded, {"version": "3"}),
    lambda queue: queue.command("HSET", queue.keys.policy(POOL), "version", 7),
]


@pytest.mark.parametrize("change", CHANGES)
async def test_each_change_of_a_pool_is_seen_at_once(told: Told, change: Callable[[Queue], Any]) -> None:
    before = await told.pools.view(POOL)
    await change(told.queue)
    await until(lambda: _another(told, before))


async def _another(told: Told, before: backends.PoolView) -> bool:
    return await told.pools.view(POOL) != before


async def test_nothing_is_read_while_nothing_changes(told: Told) -> None:
    for _ in range(20):
        await told.pools.view(POOL)
        await told.queue.command("PING")
    assert told.reads == 1


async def test_without_being_told_a_worker_would_not_see_the_change(
    queue: Queue, clients: InferenceClients, told: Told
) -> None:
    """The control: the same without a connection that tells."""
    deaf = Told(queue, clients, None)
    assert await deaf.addresses() == {FIRST}
    await backends.add(queue.store, POOL, SECOND)
    await told.seen(FIRST, SECOND)
    assert await deaf.addresses() == {FIRST}


async def test_a_change_that_is_told_while_the_pool_is_read_is_not_lost(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, moved = backends.view, asyncio.Event()

    async def overtaken(store: Any, pool: str) -> backends.PoolView:
        """The pool as it was before the change, answered behind the news of it."""
        found = await read(store, pool)
        if not moved.is_set():
            await backends.add(told.queue.store, POOL, SECOND)
            await told.pools._views.moved(20)
            moved.set()
        return found

    monkeypatch.setattr(backends, "view", overtaken)
    told.pools.look_again(POOL)
    assert await told.addresses() == {FIRST}
    assert await told.addresses() == {FIRST, SECOND}


async def test_what_changes_while_the_connection_is_lost_is_seen(told: Told) -> None:
    await told.queue.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await backends.add(told.queue.store, POOL, SECOND)
    await told.seen(FIRST, SECOND)
    await backends.remove(told.queue.store, POOL, FIRST, drain=False)
    await told.seen(SECOND)


async def test_a_connection_that_says_nothing_more_is_not_believed_for_long(told: Told) -> None:
    """A peer that is gone without a word tells no changes: a worker finds out, though it has nothing to ask."""
    assert told.following is not None
    told.following._wire._transport.pause_reading()  # type: ignore[union-attr]
    await backends.add(told.queue.store, POOL, SECOND)
    assert await told.addresses() == {FIRST}
    async with asyncio.timeout(30):
        while told.following.certain:
            await told.pools._views.moved(1)
    await told.seen(FIRST, SECOND)


async def test_a_worker_whose_user_may_not_be_told_looks_again_in_time(
    queue: Queue, clients: InferenceClients, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = acl.users(settings.namespace)[f"{settings.namespace}-worker"].replace(" +client|tracking", "")
    await queue.command("ACL", "SETUSER", "older", "reset", "on", ">secret", *rules.split())
    monkeypatch.setattr(stages, "FRESH_S", 0.0)
    older = tracked(_as(settings, "older"))
    untold = Told(queue, clients, older)
    try:
        await backends.add(queue.store, POOL, FIRST)
        await untold.seen(FIRST)
        await backends.add(queue.store, POOL, SECOND)
        await untold.seen(FIRST, SECOND)
        assert not older.certain
    finally:
        await older.aclose()
        await queue.command("ACL", "DELUSER", "older")


async def test_what_was_read_before_a_worker_might_be_told_is_read_again(
    queue: Queue, clients: InferenceClients, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user gets the right, and a new connection: that one has read one of the two pools, and tells of no other."""
    monkeypatch.setattr(stages, "FRESH_S", 3600.0)
    rules = acl.users(settings.namespace)[f"{settings.namespace}-worker"].replace(" +client|tracking", "")
    await queue.command("ACL", "SETUSER", "later", "reset", "on", ">secret", *rules.split())
    later = tracked(_as(settings, "later"))
    made = Told(queue, clients, later)
    try:
        for pool in (POOL, f"{POOL}2"):
            await backends.add(queue.store, pool, FIRST)
            assert set((await made.pools.view(pool)).backends) == {FIRST}
        assert not later.certain
        await queue.command("ACL", "SETUSER", "later", "+client|tracking")
        await queue.command("CLIENT", "KILL", "USER", "later")
        await until(lambda: _connected(made, later))
        await backends.add(queue.store, f"{POOL}2", SECOND)
        assert set((await made.pools.view(f"{POOL}2")).backends) == {FIRST, SECOND}
    finally:
        await later.aclose()
        await queue.command("ACL", "DELUSER", "later")


async def _connected(made: Told, later: TrackedRedis) -> bool:
    made.pools.look_again(POOL)
    await made.pools.view(POOL)
    return later.certain


async def test_a_workers_user_may_be_told(queue: Queue, settings: RedisSettings, clients: InferenceClients) -> None:
    rules = acl.users(settings.namespace)[f"{settings.namespace}-worker"]
    await queue.command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rules.split())
    following = tracked(_as(settings, "worker"))
    seen = Told(queue, clients, following)
    try:
        await backends.add(queue.store, POOL, FIRST)
        await seen.seen(FIRST)
        assert following.certain
        with pytest.raises(NoPermissionError):
            await following.execute_command("CLIENT", "LIST")
    finally:
        await following.aclose()
        await queue.command("ACL", "DELUSER", "worker")


def _as(settings: RedisSettings, user: str) -> RedisSettings:
    """The same server, by another user."""
    return settings.__class__(
        url=settings.url, namespace=settings.namespace, username=user, password="secret", outage_ms=settings.outage_ms
    )
