"""place: the first cell that is noted for a run stays, unless the caller names it."""

import asyncio

import pytest

from tests.support.queue import RUN, Queue
from tests.support.watch import Watch

pytestmark = pytest.mark.anyio


async def test_the_first_cell_is_noted_and_stays(queue: Queue, watch: Watch) -> None:
    await watch.look()
    assert await queue.store.place(RUN, "a") == "a"
    assert await watch.changes() == {
        "+ placed:acme:r": "string", "+ placed:acme:r ttl": "yes", "+ placed:acme:r value": "a",
    }  # fmt: skip
    assert await queue.store.place(RUN, "b") == "a"
    assert await queue.store.place(RUN, "b", was="c") == "a"
    assert await watch.changes() == {}


async def test_of_many_at_once_one_is_noted(queue: Queue) -> None:
    names = [f"cell-{number}" for number in range(20)]
    assert len(set(await asyncio.gather(*(queue.store.place(RUN, name) for name in names)))) == 1


async def test_a_moved_run_is_noted_by_who_knows_where_it_was(queue: Queue) -> None:
    await queue.store.place(RUN, "a")
    assert await queue.store.place(RUN, "b", was="a") == "b"
    assert await queue.store.place(RUN, "c", was="a") == "b"


async def test_a_note_ends_by_itself(queue: Queue) -> None:
    await queue.store.place(RUN, "a")
    await queue.command("PEXPIRE", queue.keys.placed(RUN), 5_000)
    await queue.store.place(RUN, "b")
    assert 86_400_000 < await queue.command("PTTL", queue.keys.placed(RUN)) <= 30 * 86_400_000
