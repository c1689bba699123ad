"""close: a batch's report follows the last of its records."""

import pytest

from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.places import GROUP
from tests.verbs.reserved import BATCH, B, accept, drawn, finished, reserved

pytestmark = pytest.mark.anyio


async def over(queue: Queue) -> None:
    """A batch of one group that has its record."""
    await finished(queue, *await drawn(queue, "g"))
    await accept(queue, GROUP)
    await queue.store.halt(BATCH, "target")


async def test_the_report_is_published_once_and_stays_with_the_batch(queue: Queue, watch: Watch) -> None:
    await over(queue)
    await watch.look()
    cursor = await queue.store.close(BATCH, b"the report", groups=1)
    assert await watch.changes() == {
        f"+ results:{RUN}#2": "b=the report",
        f"+ {B} cursor": "<cursor>",
        f"+ {B} report": "the report",
        f"+ {B} ttl": "yes",
        f"- dapo {BATCH}": "<ms>",
        f"run:{RUN} bytes": "6 → 16",
        f"{B} phase": "ending → closed",
    }
    assert cursor.partition("-")[0].isdigit()
    assert await queue.store.close(BATCH, b"another report", groups=1) == "already"
    await watch.nothing_changed()


async def test_a_batch_with_an_open_group_is_not_closed(queue: Queue, watch: Watch) -> None:
    await drawn(queue, "g")
    assert await queue.store.close(BATCH, b"the report", groups=0) == "open"
    await queue.store.halt(BATCH, "cancelled")
    await watch.look()
    assert await queue.store.close(BATCH, b"the report", groups=0) == "open"
    await watch.nothing_changed()


async def test_a_report_that_misses_a_group_is_not_published(queue: Queue, watch: Watch) -> None:
    """Its writer had looked before the group closed."""
    await over(queue)
    await watch.look()
    assert await queue.store.close(BATCH, b"the report", groups=0) == "open"
    await watch.nothing_changed()


async def test_a_batch_that_has_ended_takes_no_more_groups(queue: Queue, watch: Watch) -> None:
    """A submission in several calls may be cut short by a cancel."""
    await over(queue)
    batch, groups = reserved(queue, "g", "late")
    await watch.look()
    assert await queue.store.submit(batch, groups) == ["ended"]
    await watch.nothing_changed()
    assert await queue.store.submit(batch, groups[:1]) == ["already"]
