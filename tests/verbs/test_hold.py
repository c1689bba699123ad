"""hold: one process at a time has the lease on a maintenance duty."""

import pytest

from prorl_mq.store.store import Store
from tests.support.queue import Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_a_free_duty_is_held_and_the_holder_may_renew(queue: Queue) -> None:
    assert await queue.store.hold("admit", lease_ms=1_000) == "held"
    assert await queue.store.hold("admit", lease_ms=60_000) == "held"
    assert await queue.command("PTTL", queue.keys.duty("admit")) > 1_000


async def test_somebody_elses_duty_is_left_to_him(queue: Queue, watch: Watch) -> None:
    other = Store(queue.store.redis, queue.keys, name="other")
    await other.hold("admit", lease_ms=60_000)
    await watch.look()
    assert await queue.store.hold("admit", lease_ms=60_000) == "taken"
    await watch.nothing_changed()
