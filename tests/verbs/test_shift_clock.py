"""shift_clock: a jump of Redis's clock is taken out of the service's time."""

import pytest

from prorl_mq.schema.messages import Stage
from tests.support.queue import LEASE_MS, Queue
from tests.support.watch import Watch
from tests.verbs.places import JOB

pytestmark = pytest.mark.anyio
HOUR_MS = 3_600_000


async def test_the_services_time_leaves_a_jump_out(queue: Queue) -> None:
    before = await queue.store.clock()
    assert await queue.store.shift_clock(seen_ms=0, offset_ms=-HOUR_MS, jumped=True, lease_ms=LEASE_MS) == "shifted"
    after = await queue.store.clock()
    assert after.offset_ms == -HOUR_MS
    assert HOUR_MS - 10_000 < before.now_ms - after.now_ms <= HOUR_MS


async def test_two_that_saw_one_jump_take_it_out_once(queue: Queue, watch: Watch) -> None:
    await queue.store.shift_clock(seen_ms=0, offset_ms=HOUR_MS, jumped=True, lease_ms=LEASE_MS)
    await watch.look()
    other = queue.worker("other").store
    assert await other.shift_clock(seen_ms=0, offset_ms=HOUR_MS, jumped=True, lease_ms=LEASE_MS) == "moved"
    assert (await other.clock()).offset_ms == HOUR_MS
    await watch.nothing_changed()


async def test_a_lease_that_was_renewed_while_the_clock_was_wrong_ends_in_time(queue: Queue) -> None:
    """The clock had jumped an hour forward, and the worker dies: nobody waits an hour for its job."""
    await queue.hold(Stage.INIT)
    now_ms = await queue.store.now_ms()
    await queue.command("ZADD", queue.keys.leases, now_ms + HOUR_MS, JOB)
    await queue.store.shift_clock(seen_ms=0, offset_ms=-5, jumped=True, lease_ms=LEASE_MS)
    until = float(await queue.command("ZSCORE", queue.keys.leases, JOB))
    assert until <= await queue.store.now_ms() + LEASE_MS
