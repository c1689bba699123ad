"""join: a backend is added to a pool, or its description changed."""

import pytest

from prorl_mq.schema.messages import Stage
from tests.support.queue import POOL, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_a_backend_starts_without_jobs(queue: Queue, watch: Watch) -> None:
    await watch.look()
    assert await queue.store.join(POOL, "http://b1", b"about") == "joined"
    assert await watch.changes() == {
        "+ pool:policy http://b1": "0",
        "+ pool:policy:info": "hash",
        "+ pool:policy:info http://b1": "about",
        "+ pool:policy:info http://b1|since": "<ms>",
        "+ pools policy": "member",
    }


async def test_a_repeat_changes_nothing(queue: Queue, watch: Watch) -> None:
    await queue.store.join(POOL, "http://b1", b"about")
    await watch.look()
    assert await queue.store.join(POOL, "http://b1", b"about") == "known"
    await watch.nothing_changed()


async def test_one_that_comes_back_keeps_the_count_of_jobs_that_hold_it_still(queue: Queue) -> None:
    held = await queue.hold(Stage.RUN)
    await queue.store.leave(POOL, "http://b1", reason="died", drain=False)
    assert await queue.store.join(POOL, "http://b1", b"about") == "joined"
    assert await queue.load() == 1
    await queue.store.release([held])
    assert await queue.load() == 0


async def test_a_known_backend_keeps_its_count_and_its_drain_ends(queue: Queue, watch: Watch) -> None:
    await queue.hold(Stage.RUN)
    await queue.store.leave(POOL, "http://b1", reason="update", drain=True)
    await watch.look()
    assert await queue.store.join(POOL, "http://b1", b"new weights") == "known"
    assert await watch.changes() == {
        "- pool:policy:info http://b1|out": "update",
        "pool:policy:info http://b1": "about it → new weights",
    }
