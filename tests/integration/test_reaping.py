"""After a restart of Redis nothing is reaped for one lease, so that workers that live can renew first."""

from collections.abc import AsyncIterator

import pytest

from prorl_mq.duties.reap import Reaping
from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
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
