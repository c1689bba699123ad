"""adopt: a batch takes over what a full one left."""

import pytest

from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import GROUP, G
from tests.verbs.reserved import BATCH, NEXT, drawn, finished, park, submit

pytestmark = pytest.mark.anyio


async def carried(queue: Queue, *names: str) -> None:
    """Groups that the first batch left to the run, and a second batch."""
    await drawn(queue, *names)
    await queue.store.halt(BATCH, "target", carry=True, keep_ms=60_000)
    await submit(queue, batch=NEXT)


async def test_a_group_keeps_its_place_in_the_order(queue: Queue, watch: Watch) -> None:
    await carried(queue, "g")
    await watch.look()
    assert await queue.store.adopt(NEXT, {GROUP: BATCH}) == 0
    assert await watch.changes() == {
        f"+ batch:{NEXT} carried_in": "1",
        f"+ batch:{NEXT} joined": "1",
        f"+ drawn:{NEXT} {GROUP}": "1",
        f"+ {G} carries": "1",
        f"+ groups:{NEXT} {GROUP}": "member",
        f"- carried:{RUN} {GROUP}": "1",
        f"- carrying {RUN}": "<ms>",
        f"- groups:{BATCH} {GROUP}": "member",
        f"{G} batch": f"{BATCH} → {NEXT}",
    }
    assert await queue.store.adopt(NEXT, {GROUP: BATCH}) == 0
    await watch.nothing_changed()


async def test_a_group_that_has_ended_meanwhile_is_due_again(queue: Queue, watch: Watch) -> None:
    await carried(queue, "g")
    await finished(queue, GROUP)
    assert await park(queue, GROUP, phase="ending", carried=True) == "parked"
    await watch.look()
    assert await queue.store.adopt(NEXT, {GROUP: BATCH}) == 1
    changed = await watch.changes()
    assert changed["+ due#1"] == f"g={GROUP}"
    assert changed[f"- {G} parked"] == "1"


async def test_a_batch_that_has_ended_takes_nothing_over(queue: Queue, watch: Watch) -> None:
    await carried(queue, "g")
    await queue.store.halt(NEXT, "cancelled")
    await watch.look()
    assert await queue.store.adopt(NEXT, {GROUP: BATCH}) == -1
    await watch.nothing_changed()
