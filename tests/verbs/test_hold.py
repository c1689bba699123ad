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


async def test_another_processes_duty_is_left_to_it(queue: Queue, watch: Watch) -> None:
    other = Store(queue.store.redis, queue.keys, name="other")
    await other.hold("admit", lease_ms=60_000, beat=7)
    await watch.look()
    assert await queue.store.hold("admit", lease_ms=60_000) == "other\t7"
    await watch.nothing_changed()


async def test_a_duty_whose_beat_has_stood_still_is_taken_over(queue: Queue) -> None:
    """Redis's clock went back an hour, so the lease of a dead process has an hour to live."""
    other = Store(queue.store.redis, queue.keys, name="other")
    await other.hold("admit", lease_ms=60_000, beat=7)
    assert await queue.store.hold("admit", lease_ms=60_000, seen="other\t6") == "other\t7"
    assert await queue.store.hold("admit", lease_ms=60_000, seen="other\t7") == "held"


async def test_a_duty_is_given_up_by_its_holder_alone(queue: Queue) -> None:
    other = Store(queue.store.redis, queue.keys, name="other")
    await other.hold("admit", lease_ms=60_000, beat=7)
    assert await queue.store.resign("admit") == "not held"
    assert await other.resign("admit") == "resigned"
    assert await queue.store.hold("admit", lease_ms=60_000) == "held"
