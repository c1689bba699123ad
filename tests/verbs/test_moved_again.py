"""A move that begins again: after a lost second of either cell, after a run has ended, and from places of no page."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from prorl_mq.errors import InvalidBatch
from prorl_mq.schema.ids import GroupRef, RunRef
from prorl_mq.store.moves import moving, pages
from prorl_mq.store.store import Store
from tests.support.queue import RUN, Queue
from tests.verbs.moved import MOVER, copied, departed, other, published
from tests.verbs.test_moved_pages import serving

pytestmark = pytest.mark.anyio
GROUPS = 2_500  # more than one page


@pytest.fixture
def directory() -> Iterator[Path]:
    """One with a name that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        yield Path(name)


async def with_groups(queue: Queue) -> None:
    await queue.submit("waits")
    pipe = queue.redis.pipeline()
    for i in range(GROUPS):
        pipe.execute_command("HSET", queue.keys.group(GroupRef(f"{RUN}:g{i}")), "digest", "x")
    await pipe.execute()


@pytest.mark.parametrize("named", [True, False])
async def test_pages_that_the_new_cell_loses_with_its_last_second_come_again(
    queue: Queue, directory: Path, *, named: bool
) -> None:
    """The control: a cell that does not know on which server the first page was written opens the run without it."""
    await with_groups(queue)
    live, kept = directory / "live", directory / "kept"
    live.mkdir()
    async with serving(live) as there:
        await there.prepare("n1")
        await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
        departure = await departed(queue)
    shutil.copytree(live, kept)
    async with serving(live) as there:
        page = await pages.page(queue.store, RUN, departure, "")
        assert await moving.take(there.store, RUN, MOVER, departure, page, first=True) == ("written", "")
    shutil.rmtree(live)
    kept.rename(live)
    async with serving(live) as there:
        if not named:
            server = pages.server_of(await there.command("INFO", "replication"))
            await there.command("HSET", there.keys.away(RUN), "server", server)
        page = await pages.page(queue.store, RUN, departure, page.after or "")
        said = await moving.take(there.store, RUN, MOVER, departure, page)
        assert said[0] == ("restarted" if named else "opened" if page.after is None else "written")
        if named:
            assert await copied(queue, there, departure) == "opened"
            assert len(await there.command("KEYS", f"{there.keys.prefix}group:*")) == GROUPS + 1


@pytest.mark.parametrize("cleared", [True, False])
async def test_what_was_copied_of_a_departure_that_its_cell_has_lost_does_not_come_back(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, *, cleared: bool
) -> None:
    """The old cell loses its departure with its last second, and a group is withdrawn there. The control: with what
    was copied before the group is back in the new cell.
    """
    await queue.submit("waits")
    await queue.submit("ends", batch="second")
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    first = await departed(queue)
    page = await pages.page(queue.store, RUN, first, "")
    more = pages.RunPage(page.writes, "more", page.namespace)
    await moving.take(there.store, RUN, MOVER, first, more, first=True)
    assert await queue.store.restore(RUN, first, "ask") == "given"
    assert await queue.store.restore(RUN, first, "sure") == "restored"  # as the lost second does
    await queue.withdraw(GroupRef(f"{RUN}:ends"))
    await queue.settle()
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    second = await departed(queue)
    if not cleared:
        arrive = Store.arrive

        async def without(store: Store, run: RunRef, step: str, **more: object) -> tuple[str, str]:
            return ("cleared", "") if step == "clear" else await arrive(store, run, step, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Store, "arrive", without)
        server = pages.server_of(await there.command("INFO", "replication"))
        await there.command("HSET", there.keys.away(RUN), "server", server)
    assert await copied(queue, there, second) == "opened"
    back = await there.command("SISMEMBER", there.keys.open_groups(RUN), f"{RUN}:ends")
    assert back == (0 if cleared else 1)


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_run_that_has_ended_does_not_come_again_by_the_departure_that_brought_it(
    queue: Queue, *, remembered: bool
) -> None:
    """Its move ended before its old cell removed it. The control: a new cell that has forgotten the arrival."""
    await published(queue)
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    departure = await departed(queue)
    assert await copied(queue, there, departure) == "opened"
    await there.withdraw(GroupRef(f"{RUN}:waits"))
    await there.settle()
    await there.ack_all()
    assert await there.store.retire_run(RUN, idle_ms=-1) == "retired"
    if not remembered:
        await there.command("DEL", there.keys.arrivals)
    begun = await there.store.arrive(RUN, "begin", mover="m2", cell="a", departure=departure)
    assert begun == (("here", departure) if remembered else ("begun", ""))
    if not remembered:
        return
    assert await moving.clear(queue.store, RUN, departure) == "vacated"
    assert await there.store.arrive(RUN, "over", mover="", departure=departure) == ("over", "")
    assert await there.command("EXISTS", there.keys.arrivals) == 0


@pytest.mark.parametrize(
    "pending",
    ["settings:tenants", "run:acme:other", "group:acme:other:g", "epoch", "results:acme:other"],
)
async def test_no_page_has_keys_of_anything_but_its_run(queue: Queue, pending: str) -> None:
    """The place of a page comes back from its caller, who may be the operator of one tenant."""
    await published(queue)
    departure = await departed(queue)
    await queue.command("HSET", f"{queue.keys.prefix}{pending}", "secret", "x")
    server = pages.server_of(await queue.command("INFO", "replication"))
    place = msgspec.json.encode((server, "0", [(pending, "0")])).decode()
    with pytest.raises(InvalidBatch, match="no page of run 'r' begins at"):
        await pages.page(queue.store, RUN, departure, place)


@pytest.mark.parametrize("after", ["nonsense", "[]", '["s","x",[]]', '["s","0",[["run:acme:r","x"]]]'])
async def test_a_place_of_no_page_is_refused(queue: Queue, after: str) -> None:
    await published(queue)
    departure = await departed(queue)
    after = after.replace('"s"', f'"{pages.server_of(await queue.command("INFO", "replication"))}"')
    if "run:acme:r" in after:
        after = after.replace("run:acme:r", "departed:acme:r")
    with pytest.raises(InvalidBatch, match="no page of run 'r' begins at"):
        await pages.page(queue.store, RUN, departure, after)
