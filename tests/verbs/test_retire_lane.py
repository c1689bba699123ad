"""retire_lane: the lane of a node that is gone is removed once nothing is on it."""

import pytest

from prorl_mq.schema.items import Advance
from prorl_mq.schema.messages import Stage
from tests.support.queue import Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_an_empty_lane_is_removed(queue: Queue, watch: Watch) -> None:
    await watch.look()
    assert await queue.store.retire_lane("n1") == "retired"
    assert await watch.changes() == {"- lanes n1": "member"}
    assert await queue.command("EXISTS", queue.keys.stage(Stage.RUN, "n1")) == 0
    assert await queue.store.retire_lane("n1") == "retired"


async def test_a_lane_with_a_job_stays(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.INIT)
    await queue.store.advance([Advance(held, "n1", b"c")])
    await watch.look()
    assert await queue.store.retire_lane("n1") == "in use"
    await queue.read(Stage.RUN, "n1")
    assert await queue.store.retire_lane("n1") == "in use"
    assert set(await watch.changes()) == {"+ pending stage:run@n1#1", "+ stage:run@n1 consumer w1"}
