"""halt: a batch draws and accepts nothing more."""

import pytest

from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import GROUP
from tests.verbs.reserved import BATCH, B, accept, drawn, finished

pytestmark = pytest.mark.anyio


async def test_all_that_is_in_play_becomes_the_carry_over(queue: Queue, watch: Watch) -> None:
    await drawn(queue, "g", "h")
    await queue.command("DEL", queue.keys.draw_bell)
    await watch.look()
    assert await queue.store.halt(BATCH, "target", carry=True, keep_ms=60_000) == "halted"
    assert await watch.changes() == {
        f"+ carried:{RUN} {GROUP}": "1",
        f"+ carried:{RUN} acme:r:h": "2",
        f"+ carrying {RUN}": "<ms>",
        f"+ changed:draw {BATCH}": "0",
        "+ counters": "hash",
        "+ counters dapo:carried": "2",
        f"+ {B} carried_out": "2",
        f"+ {B} reason": "target",
        f"+ {B} v:carried": "2",
        f"- drawn:{BATCH} {GROUP}": "1",
        f"- drawn:{BATCH} acme:r:h": "2",
        f"{B} closed": "0 → 2",
        f"{B} phase": "open → ending",
    }


async def test_what_the_run_carried_before_stays_and_keeps_its_place(queue: Queue) -> None:
    await drawn(queue, "g")
    await queue.command("ZADD", queue.keys.carried(RUN), 0.5, GROUP, 0.25, "acme:r:old")
    assert await queue.store.halt(BATCH, "target", carry=True, keep_ms=60_000) == "halted"
    found = await queue.command("ZRANGE", queue.keys.carried(RUN), 0, -1, "WITHSCORES")
    assert found == [b"acme:r:old", b"0.25", GROUP.encode(), b"0.5"]


async def test_the_first_reason_stays(queue: Queue, watch: Watch) -> None:
    await drawn(queue, "g")
    await queue.store.halt(BATCH, "cancelled")
    await watch.look()
    assert await queue.store.halt(BATCH, "target", carry=True, keep_ms=60_000) == "already"
    await watch.nothing_changed()


async def test_a_plain_batch_is_none_to_halt(queue: Queue, watch: Watch) -> None:
    await queue.submit()
    await watch.look()
    assert await queue.store.halt(BATCH, "cancelled") == "already"
    await watch.nothing_changed()


async def test_a_group_that_ends_at_that_moment_is_not_accepted(queue: Queue, watch: Watch) -> None:
    """Its verdict saw an open batch: it is made again."""
    await finished(queue, *await drawn(queue, "g"))
    await queue.store.halt(BATCH, "cancelled")
    await watch.look()
    assert await accept(queue, GROUP) == "moved"
    await watch.nothing_changed()
