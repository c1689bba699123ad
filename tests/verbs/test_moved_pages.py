"""Pages of a run that moves: all of it comes, whatever becomes of the server between two of them, and none is large."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from prorl_mq.process import redis_server as server
from prorl_mq.schema.ids import GroupRef
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.moves import moving, pages
from prorl_mq.store.server.connection import connect
from tests.support.queue import RUN, Queue
from tests.verbs.moved import MOVER, copied, departed, other

pytestmark = pytest.mark.anyio
GROUPS = 4_000


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
        await moving.take(there.store, RUN, MOVER, departure, first)
        assert first.after is not None
    async with serving(directory) as here:
        place = msgspec.json.decode(first.after)
        if not named:
            place[0] = pages.server_of(await here.command("INFO", "replication"))
        assert await copied(here, there, departure, msgspec.json.encode(place).decode()) == "opened"
    arrived = len(await there.command("KEYS", f"{there.keys.prefix}group:*"))
    assert (arrived == GROUPS + 1) is named
