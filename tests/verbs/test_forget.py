"""forget: the names of a dead worker go when nothing hangs on them."""

import pytest

from prorl_mq.schema.messages import Stage
from tests.support.queue import Queue
from tests.support.watch import Watch
from tests.verbs.test_renew import beat

pytestmark = pytest.mark.anyio


async def forget(queue: Queue) -> str:
    streams = [queue.keys.stage(stage) for stage in Stage]
    return await queue.store.forget("w1", [*streams, queue.keys.stage(Stage.RUN, "gone")])


async def dead(queue: Queue) -> None:
    """The worker has been known and is overdue."""
    await beat(queue, [])
    await queue.command("ZADD", queue.keys.workers, 1, "w1")


async def test_a_living_worker_is_left_alone(queue: Queue, watch: Watch) -> None:
    await beat(queue, [])
    await watch.look()
    assert await forget(queue) == "alive"
    await watch.nothing_changed()


async def test_a_dead_workers_names_are_removed(queue: Queue, watch: Watch) -> None:
    await queue.finish(await queue.hold(Stage.INIT))
    await dead(queue)
    await watch.look()
    assert await forget(queue) == "forgotten"
    changed = await watch.changes()
    assert {place for place in changed if not place.startswith("- worker:w1")} == {
        "- stage:init consumer w1",
        "- workers w1",
    }
    assert await forget(queue) == "forgotten"
    await watch.nothing_changed()


async def test_a_consumer_that_holds_entries_stays_until_they_are_reaped(queue: Queue, watch: Watch) -> None:
    """Deleting a consumer deletes its pending list: its entries would be lost."""
    await queue.admitted()
    await queue.read(Stage.INIT)
    await dead(queue)
    await watch.look()
    assert await forget(queue) == "pending"
    await watch.nothing_changed()


async def test_a_stream_that_has_lost_its_consumer_group_keeps_nobody(queue: Queue) -> None:
    """After a lost second a job was added before a worker made the group again."""
    await dead(queue)
    stream = queue.keys.stage(Stage.EVAL)
    await queue.command("DEL", stream)
    await queue.command("XADD", stream, "*", "j", "t:r:g:0")
    assert await forget(queue) == "forgotten"
