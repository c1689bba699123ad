"""After a restart of Redis nothing is reaped for one lease, so that workers that live can renew first."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from prorl_mq.duties.reap import Reaping
from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.items import Lane
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.store import streams
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.epoch import another_server
from tests.support.queue import Queue

pytestmark = pytest.mark.anyio
LONG_MS, SHORT_MS = 600_000, 1


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys) -> AsyncIterator[Queue]:
    client = connect(settings)
    made = Queue(client, keys)
    await made.prepare()
    yield made
    await client.aclose()


def reaper(queue: Queue, *, lease_ms: int) -> Reaping:
    return Reaping(queue.store, ServiceClock(queue.store, lease_ms=lease_ms), lease_ms=lease_ms)


async def test_an_overdue_lease_is_reaped_while_redis_stays_up(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.overdue(held.ref)
    await reaper(queue, lease_ms=LONG_MS).turn()
    assert (await queue.snapshot(held.ref)).state == State.QUEUED


async def test_an_overdue_lease_is_left_alone_for_one_lease_after_a_restart(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.overdue(held.ref)
    await another_server(queue)
    reaping = reaper(queue, lease_ms=LONG_MS)
    for _ in range(3):
        await reaping.turn()
    assert (await queue.snapshot(held.ref)).state == State.LEASED


async def test_after_that_lease_it_is_reaped(queue: Queue) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.overdue(held.ref)
    await another_server(queue)
    reaping = reaper(queue, lease_ms=SHORT_MS)
    while (await queue.snapshot(held.ref)).state == State.LEASED:
        await reaping.turn()
    assert (await queue.snapshot(held.ref)).state == State.QUEUED


async def read_ms_ago(queue: Queue, entry: str, idle_ms: int) -> None:
    stream = queue.keys.stage(Stage.INIT)
    await queue.command("XCLAIM", stream, "workers", "w1", 0, entry, "IDLE", idle_ms, "JUSTID")


async def test_an_entry_that_is_not_claimed_is_taken_back_after_half_a_lease(queue: Queue) -> None:
    [early, late] = [(await queue.admitted(name, batch=name))[0] for name in ("g", "h")]
    entries = await queue.read(Stage.INIT)
    for entry, idle_ms in zip(entries, (LONG_MS // 2, LONG_MS // 2 - 60_000), strict=True):
        await read_ms_ago(queue, entry.entry, idle_ms)
    await reaper(queue, lease_ms=LONG_MS).turn()
    assert (await queue.snapshot(early)).entry != entries[0].entry
    assert (await queue.snapshot(late)).entry == entries[1].entry


async def test_an_entry_that_was_passed_over_is_taken_back_once_its_worker_is_dead(queue: Queue) -> None:
    """It was read again, so that a younger one looked older."""
    [first, second] = [(await queue.admitted(name, batch=name))[0] for name in ("g", "h")]
    entries = await queue.read(Stage.INIT)
    await read_ms_ago(queue, entries[1].entry, LONG_MS)
    reaping = reaper(queue, lease_ms=LONG_MS)
    await reaping.turn()
    assert (await queue.snapshot(second)).entry != entries[1].entry
    await read_ms_ago(queue, entries[0].entry, LONG_MS)
    await reaping.turn()
    assert (await queue.snapshot(first)).entry == entries[0].entry, "its worker claims it, or dies"
    await queue.command("ZADD", queue.keys.workers, 1, "w1")
    await reaping.turn()
    assert (await queue.snapshot(first)).entry != entries[0].entry
    await reaping.turn()
    assert await queue.command("ZCARD", queue.keys.workers) == 0, "and is forgotten"


async def test_claims_that_were_seen_before_a_restart_are_looked_for_again(queue: Queue) -> None:
    """A restart may have lost them, and with them the lease that would be overdue."""
    [first, second] = [(await queue.admitted(name, batch=name))[0] for name in ("g", "h")]
    stream = queue.keys.stage(Stage.INIT)
    entries = {ref: (await queue.snapshot(ref)).entry for ref in (first, second)}
    take = ("XCLAIM", stream, "workers", "w1", 0)
    reaping = reaper(queue, lease_ms=SHORT_MS)

    async def taken_back(ref: JobRef) -> None:
        await queue.command(*take, entries[ref], "IDLE", LONG_MS, "FORCE", "JUSTID")
        async with asyncio.timeout(20):
            while (await queue.snapshot(ref)).entry == entries[ref]:
                await reaping.turn()

    await taken_back(second)
    await another_server(queue)
    await taken_back(first)


async def test_a_node_that_an_earlier_release_has_enrolled_does_not_stop_the_reaper(queue: Queue) -> None:
    """Its workers have made their lane without the one in front, to which its displaced rollouts come."""
    front = queue.keys.stage(*Lane(Stage.RUN, "old").ahead)
    await queue.redis.sadd(queue.keys.lanes, "old")
    await streams.ensure(queue.redis, [queue.keys.stage(Stage.RUN, "old")])
    held = await queue.hold(Stage.INIT)
    await queue.overdue(held.ref)
    await reaper(queue, lease_ms=LONG_MS).turn()
    assert (await queue.snapshot(held.ref)).state == State.QUEUED
    await reaper(queue, lease_ms=LONG_MS).turn()
    assert not await queue.redis.smembers(queue.keys.lanes), "its node is gone, and its lanes with it"
    assert not await queue.redis.exists(front)
