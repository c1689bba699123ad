"""leave: a backend goes out of its pool, at once or after its jobs."""

import pytest

from prorl_mq.messages import Stage
from tests.support.queue import POOL, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_a_draining_backend_stays_until_its_jobs_are_over(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.RUN)
    await watch.look()
    assert await queue.broker.leave(POOL, "http://b1", reason="update", drain=True) == "draining"
    assert await watch.changes() == {"+ pool:policy:info http://b1|out": "update"}
    assert await queue.broker.leave(POOL, "http://b1", reason="update", drain=True) == "draining"
    await watch.nothing_changed()
    await queue.broker.release([held])
    assert await queue.load() == 0


async def test_a_removed_backend_is_forgotten_and_not_brought_back_by_its_jobs(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.RUN)
    await watch.look()
    assert await queue.broker.leave(POOL, "http://b1", reason="died", drain=False) == "left"
    assert await watch.changes() == {
        "- pool:policy http://b1": "1",
        "- pool:policy:info": "hash",
        "- pool:policy:info http://b1": "about it",
    }
    await queue.broker.release([held])
    assert await queue.command("EXISTS", queue.keys.pool(POOL)) == 0


@pytest.mark.parametrize("drain", [True, False])
async def test_an_unknown_backend_changes_nothing(queue: Queue, watch: Watch, drain: bool) -> None:
    await watch.look()
    assert await queue.broker.leave(POOL, "http://b9", reason="died", drain=drain) == "unknown"
    await watch.nothing_changed()
