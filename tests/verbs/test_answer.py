"""answer: a message of an intake is replaced by its answer on the results, once."""

import pytest
from redis.exceptions import ResponseError

from prorl_mq.schema.ids import batch_ref
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def message(queue: Queue) -> str:
    entry: bytes = await queue.command("XADD", queue.keys.intake(RUN), "*", "m", b"a message")
    return entry.decode()


async def test_the_answer_takes_the_place_of_its_message(queue: Queue, watch: Watch) -> None:
    entry = await message(queue)
    await watch.look()
    assert await queue.store.answer(RUN, entry, b"done") == "answered"
    assert await watch.changes() == {
        f"+ answers:{RUN} results:{RUN}#1": "<ms>",
        f"+ results:{RUN}#1": "a=done",
        f"+ runs {RUN}": "<ms>",
        f"- intake:{RUN}#1": "m=a message",
    }


async def test_a_message_is_not_answered_twice(queue: Queue, watch: Watch) -> None:
    """Two processes may have carried it out."""
    entry = await message(queue)
    await queue.store.answer(RUN, entry, b"done")
    await watch.look()
    assert await queue.store.answer(RUN, entry, b"done again") == "already"
    await watch.nothing_changed()


async def test_a_cancel_is_answered_once_and_its_name_is_removed(queue: Queue) -> None:
    name = batch_ref(RUN, "b")
    await queue.command("SADD", queue.keys.to_cancel("acme"), name)
    answers = [await queue.store.answer_cancel(name, b"done") for _ in range(2)]
    assert answers == ["answered", "already"]
    assert await queue.command("EXISTS", queue.keys.to_cancel("acme")) == 0
    assert await queue.command("XLEN", queue.keys.results(RUN)) == 1


async def test_results_of_another_kind_leave_the_message_where_it_is(queue: Queue, watch: Watch) -> None:
    """It was removed before the answer failed: nobody could then know that it was ever there."""
    entry = await message(queue)
    await queue.command("SET", queue.keys.results(RUN), "no stream")
    await watch.look()
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await queue.store.answer(RUN, entry, b"done")
    await watch.nothing_changed()
