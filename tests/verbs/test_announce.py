"""announce: the policy version of a pool, and when it was said."""

import pytest

from prorl_mq.schema.policy import BackendProgress
from prorl_mq.store import policy
from prorl_mq.store.store import HISTORY
from tests.support.queue import POOL, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_an_announcement_is_remembered_and_what_was_known_of_the_last_one_goes(queue: Queue) -> None:
    before_ms = await queue.store.now_ms()
    assert await queue.store.announce(POOL, 7, "drain", "/w/7") == "announced"
    first = await policy.announced(queue.store, POOL)
    assert (first.version, first.mode, first.weights, first.floor) == (7, "drain", "/w/7", 7)
    [(at_ms, version)] = first.history
    assert version == 7
    assert before_ms <= at_ms <= await queue.store.now_ms()
    await policy.note(queue.store, POOL, first.id, "http://b1", BackendProgress(step="done"))
    assert await queue.store.announce(POOL, 8, "keep", "") == "announced"
    second = await policy.announced(queue.store, POOL)
    assert [said for _, said in second.history] == [7, 8]
    assert (second.weights, second.floor) == ("", None)
    assert second.id != first.id
    assert await policy.progress(queue.store, POOL) == {}


async def test_a_repeat_changes_nothing(queue: Queue, watch: Watch) -> None:
    """A client whose answer was lost says it again; backends that are done must not begin again."""
    await queue.store.announce(POOL, 7, "drain", "/w/7")
    now = await policy.announced(queue.store, POOL)
    await policy.note(queue.store, POOL, now.id, "http://b1", BackendProgress(step="done"))
    await watch.look()
    assert await queue.store.announce(POOL, 7, "drain", "/w/7") == "already"
    await watch.nothing_changed()


async def test_other_weights_under_the_same_version_are_another_announcement_of_it(queue: Queue) -> None:
    await queue.store.announce(POOL, 7, "keep", "/w/7")
    assert await queue.store.announce(POOL, 7, "keep", "/w/7-again") == "announced"
    assert [said for _, said in (await policy.announced(queue.store, POOL)).history] == [7]


async def test_the_history_is_bounded(queue: Queue) -> None:
    for version in range(HISTORY + 20):
        await queue.store.announce(POOL, version, "keep", "")
    history = (await policy.announced(queue.store, POOL)).history
    assert [said for _, said in history] == list(range(20, HISTORY + 20))
