"""progress: how far a backend is with the weights that were announced last."""

import pytest

from prorl_mq.store import policy
from tests.support.queue import POOL, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_progress_is_kept_for_each_backend(queue: Queue, watch: Watch) -> None:
    await queue.store.announce(POOL, 7, "keep", "/w/7")
    now = await policy.announced(queue.store, POOL)
    await watch.look()
    assert await queue.store.progress(POOL, now.id, "http://b1", b"loaded") == "noted"
    assert await queue.store.progress(POOL, now.id, "http://b2", b"paused") == "noted"
    assert await watch.changes() == {
        "+ policy:policy:update": "hash",
        "+ policy:policy:update http://b1": "loaded",
        "+ policy:policy:update http://b2": "paused",
    }


async def test_progress_with_weights_that_are_not_wanted_any_more_is_refused(queue: Queue, watch: Watch) -> None:
    """A process that was away must not say `done` for what came later."""
    await queue.store.announce(POOL, 7, "keep", "/w/7")
    old = await policy.announced(queue.store, POOL)
    await queue.store.announce(POOL, 8, "keep", "/w/8")
    await watch.look()
    assert await queue.store.progress(POOL, old.id, "http://b1", b"done") == "stale"
    await watch.nothing_changed()
