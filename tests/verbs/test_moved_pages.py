"""Pages of a run that moves: all of it comes, whatever becomes of the server between two of them, and none is large."""

import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prorl_mq.errors import NotFound
from prorl_mq.process import redis_server as server
from prorl_mq.schema.ids import GroupRef
from prorl_mq.schema.intake import TRAINERS
from prorl_mq.store.core import Command
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.moves import moving, pages
from prorl_mq.store.server.connection import connect
from tests.support.queue import RUN, Queue
from tests.verbs.moved import MOVER, copied, departed, other, published

pytestmark = pytest.mark.anyio
GROUPS = 3_000


@pytest.fixture
def directory() -> Iterator[Path]:
    """One with a name that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        yield Path(name)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Queue]:
    """The old cell on a server of its own."""
    async with server.running(directory, namespace="src") as settings:
        redis = connect(settings)
        yield Queue(redis, Keys("src"))
        await redis.aclose()


@pytest.mark.parametrize("named", [True, False])
async def test_a_server_that_restarts_between_two_pages_loses_nothing(
    queue: Queue, directory: Path, *, named: bool
) -> None:
    """The control: a cursor that does not name its server leaves groups out."""
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    async with serving(directory) as here:
        await here.prepare("n1")
        await here.submit("waits")
        pipe = here.redis.pipeline()
        for i in range(GROUPS):
            pipe.execute_command("HSET", here.keys.group(GroupRef(f"{RUN}:g{i}")), "digest", "x" * 1_000)
        await pipe.execute()
        departure = await departed(here)
        first = await pages.page(here.store, RUN, departure, "")
        await moving.take(there.store, RUN, MOVER, departure, first, first=True)
        assert first.after is not None
    async with serving(directory) as here:
        place = msgspec.json.decode(first.after)
        if not named:
            place[0] = pages.server_of(await here.command("INFO", "replication"))
        assert await copied(here, there, departure, msgspec.json.encode(place).decode()) == "opened"
    arrived = len(await there.command("KEYS", f"{there.keys.prefix}group:*"))
    assert (arrived == GROUPS + 1) is named


async def pages_of(queue: Queue, there: Queue, departure: str) -> list[pages.RunPage]:
    """All of them, written where the run arrives."""
    found, after, state = list[pages.RunPage](), "", ""
    while not found or found[-1].after is not None:
        found.append(await pages.page(queue.store, RUN, departure, after))
        state, _ = await moving.take(there.store, RUN, MOVER, departure, found[-1], first=not after)
        after = found[-1].after or ""
    assert state == "opened"
    return found


async def test_no_page_is_large_whatever_an_entry_or_a_field_holds(queue: Queue) -> None:
    await published(queue)
    there = await other(queue)
    large, stream, group = b"x" * 200_000, queue.keys.results(RUN), queue.keys.group(GroupRef(f"{RUN}:waits"))
    for i in range(100):
        await queue.command("XADD", stream, "*", "other", large)
        await queue.command("HSET", group, f"other:{i}", large)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    found = await pages_of(queue, there, await departed(queue))
    sizes = [len(msgspec.msgpack.encode(each)) for each in found]
    assert max(sizes) < 4 * pages.PAGE_BYTES
    assert await there.command("XLEN", there.keys.results(RUN)) == 101
    assert await there.command("HLEN", there.keys.group(GroupRef(f"{RUN}:waits"))) > 100


async def test_no_page_keeps_redis_busy_whatever_the_number_of_keys_and_deliveries(queue: Queue) -> None:
    await published(queue)
    there = await other(queue)
    stream, pipe = queue.keys.results(RUN), queue.redis.pipeline()
    for i in range(GROUPS):
        pipe.execute_command("HSET", queue.keys.group(GroupRef(f"{RUN}:g{i}")), "verdict", "accepted")
        pipe.execute_command("XADD", stream, "*", "other", i)
    await pipe.execute()
    await queue.command("XREADGROUP", "GROUP", TRAINERS, "c", "COUNT", GROUPS, "STREAMS", stream, ">")
    before = await queue.command("XPENDING", stream, TRAINERS, "-", "+", 2 * GROUPS)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    found = await pages_of(queue, there, await departed(queue))
    assert max(len(each.writes) for each in found) <= pages.PAGE_WRITES + pages.PIECE + 8
    after = await there.command("XPENDING", there.keys.results(RUN), TRAINERS, "-", "+", 2 * GROUPS)
    assert [(entry, consumer, times) for entry, consumer, _, times in after] == [
        (entry, consumer, times) for entry, consumer, _, times in before
    ]


async def test_a_page_of_a_run_that_is_removed_meanwhile_says_that_it_is_gone(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another caller has ended the move between two reads of a page: no command may fail for want of a key."""
    await published(queue)
    departure, read_many = await departed(queue), queue.store.read_many

    async def overtaken(commands: Sequence[Command]) -> list[Any]:
        if commands[0][0] == "XINFO":
            monkeypatch.setattr(queue.store, "read_many", read_many)
            assert await moving.clear(queue.store, RUN, departure) == "vacated"
        return await read_many(commands)

    monkeypatch.setattr(queue.store, "read_many", overtaken)
    with pytest.raises(NotFound, match="is wholly gone"):
        await pages.page(queue.store, RUN, departure, "")
