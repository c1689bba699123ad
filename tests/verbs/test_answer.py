"""answer: a message of an intake is replaced by its answer on the results, once."""

import pytest

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
        f"+ results:{RUN}#1": "a=done",
        f"- intake:{RUN}#1": "m=a message",
    }


async def test_a_message_is_not_answered_twice(queue: Queue, watch: Watch) -> None:
    """Two processes may have carried it out."""
    entry = await message(queue)
    await queue.store.answer(RUN, entry, b"done")
    await watch.look()
    assert await queue.store.answer(RUN, entry, b"done again") == "already"
    await watch.nothing_changed()
