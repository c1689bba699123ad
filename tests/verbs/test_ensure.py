"""ensure: a stream has its consumer group, and what lay on it before is read."""

import pytest

from prorl_mq.schema.items import Lane
from prorl_mq.schema.messages import Stage
from prorl_mq.store import streams
from prorl_mq.store.layout.keys import GROUP, lane_name
from tests.support.queue import Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_an_entry_that_came_before_the_group_is_read(queue: Queue) -> None:
    lane = queue.keys.stage(Stage.RUN, "n7")
    await queue.command("XADD", lane, "*", "j", "default:r:g:0")
    await streams.ensure(queue.store.redis, [lane])
    found = await streams.read(queue.store.redis, "w", [lane], count=10, block_ms=None)
    assert [entry.ref for entry in found[lane]] == ["default:r:g:0"]


async def test_a_repeat_changes_nothing(queue: Queue, watch: Watch) -> None:
    await streams.ensure(queue.store.redis, streams.shared(queue.keys))
    await watch.look()
    await streams.ensure(queue.store.redis, streams.shared(queue.keys))
    await watch.nothing_changed()
    for stream in streams.shared(queue.keys):
        [about] = await queue.command("XINFO", "GROUPS", stream)
        assert about[1] == GROUP.encode()


@pytest.mark.parametrize("family", [None, "sums"])
@pytest.mark.parametrize("listed", [True, False])
async def test_a_lane_is_made_only_while_it_is_listed(queue: Queue, family: str | None, listed: bool) -> None:
    """Whoever looks after lanes may have read the list before another retired this one, or a restart lost it. The
    control: one that is listed is made, and what was on it is read.
    """
    lane = Lane(Stage.RUN, "n7", family)
    stream = queue.keys.stage(*lane)
    if listed:
        key, name = (queue.keys.lanes, "n7") if family is None else (queue.keys.family_lanes, lane_name(lane))
        await queue.command("SADD", key, name)
    assert await streams.read_long_ago(queue.store, stream, idle_ms=0, start="-", limit=10) == []
    assert await queue.command("EXISTS", stream) == listed
