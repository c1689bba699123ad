"""leave: a backend goes out of its pool, at once or after its jobs."""

import pytest

from prorl_mq.schema.messages import Stage
from tests.support.queue import POOL, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_a_draining_backend_stays_until_its_jobs_are_over(queue: Queue, watch: Watch) -> None:
    held = await queue.hold(Stage.RUN)
    await watch.look()
    assert await queue.store.leave(POOL, "http://b1", reason="update", drain=True) == "draining"
    assert await watch.changes() == {"+ pool:policy:info http://b1|out": "update"}
    assert await queue.store.leave(POOL, "http://b1", reason="update", drain=True) == "draining"
    await watch.nothing_changed()
    await queue.store.release([held])
    assert await queue.store.leave(POOL, "http://b1", reason="update", drain=True, sweep=True) == "left"
    assert await queue.command("EXISTS", queue.keys.pool(POOL), queue.keys.pool_info(POOL)) == 0


async def test_a_removed_backend_counts_for_as_long_as_jobs_hold_it(queue: Queue, watch: Watch) -> None:
    """No count is lost, and none falls on one that joins under its address later."""
    held = await queue.hold(Stage.RUN)
    await watch.look()
    assert await queue.store.leave(POOL, "http://b1", reason="died", drain=False) == "left"
    assert await watch.changes() == {
        "- pool:policy:info": "hash",
        "- pool:policy:info http://b1": "about it",
        "- pool:policy:info http://b1|since": "<ms>",
    }
    await queue.store.leave(POOL, "http://b1", reason="drained", drain=True, sweep=True)
    await watch.nothing_changed()
    await queue.store.release([held])
    assert await queue.load() == 0
    await queue.store.leave(POOL, "http://b1", reason="drained", drain=True, sweep=True)
    assert await queue.command("EXISTS", queue.keys.pool(POOL)) == 0


async def test_a_backend_that_a_pool_has_lost_is_not_brought_back_by_a_job_that_held_it(queue: Queue) -> None:
    """Nobody would have said that it serves, and its count would begin below zero."""
    held = await queue.hold(Stage.RUN)
    await queue.command("ZREM", queue.keys.pool(POOL), "http://b1")
    assert await queue.store.release([held]) == ["released"]
    assert await queue.command("EXISTS", queue.keys.pool(POOL)) == 0


async def test_a_sweep_spares_a_backend_that_serves(queue: Queue, watch: Watch) -> None:
    await queue.store.join(POOL, "http://b1", b"about")
    await watch.look()
    assert await queue.store.leave(POOL, "http://b1", reason="drained", drain=True, sweep=True) == "kept"
    await watch.nothing_changed()


@pytest.mark.parametrize("drain", [True, False])
async def test_an_unknown_backend_changes_nothing(queue: Queue, watch: Watch, drain: bool) -> None:
    await watch.look()
    assert await queue.store.leave(POOL, "http://b9", reason="died", drain=drain) == "unknown"
    await watch.nothing_changed()
