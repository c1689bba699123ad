"""resign: a holder gives the lease on a duty up, and nobody else's."""

import pytest

from prorl_mq.store.store import Store
from tests.support.queue import Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_a_duty_that_was_given_up_is_free(queue: Queue, watch: Watch) -> None:
    await watch.look()
    await queue.store.hold("admit", lease_ms=60_000)
    assert await queue.store.resign("admit") == "resigned"
    await watch.nothing_changed()


async def test_the_lease_of_another_holder_stays(queue: Queue, watch: Watch) -> None:
    other = Store(queue.store.redis, queue.keys, name="other")
    await other.hold("admit", lease_ms=60_000)
    await watch.look()
    assert await queue.store.resign("admit") == "not held"
    await watch.nothing_changed()
