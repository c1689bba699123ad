"""refuse: a run whose cell takes it back arrives no more, and what had come of it is removed."""

import pytest

from prorl_mq.schema.status import RunPlace
from prorl_mq.store.moves import moving, pages
from prorl_mq.store.moves.pages import server_of
from prorl_mq.store.verbs.moves import NOTED_MS
from tests.support.queue import RUN, Queue
from tests.verbs.lost import Act, case
from tests.verbs.moved import MOVER, copied, departed, other, published

pytestmark = pytest.mark.anyio


@case("refuse", "refused")
async def _(queue: Queue) -> Act:
    await queue.store.arrive(RUN, "begin", mover="m", cell="a")
    await queue.store.refuse(RUN, "1", [], mover="m2", cell="a")
    server = server_of(await queue.command("INFO", "replication"))
    return lambda q: q.store.refuse(RUN, "1", [], mover="m2", cell="a", last=server)


async def test_it_is_noted_where_the_run_stays_and_nothing_else_is_left(queue: Queue) -> None:
    await published(queue)
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    departure = await departed(queue)
    page = await pages.page(queue.store, RUN, departure, "")
    more = pages.RunPage(page.writes, "more", page.namespace)
    await moving.take(there.store, RUN, MOVER, departure, more, first=True)
    assert await moving.refuse(there.store, RUN, departure, "m2", "a") == "refused"
    names = [name.decode() for name in await there.command("KEYS", f"{there.keys.prefix}*{RUN}*")]
    assert names == [there.keys.away(RUN)]
    assert await moving.whereabouts(there.store, RUN) == RunPlace(state="gone", cell="a", id=departure)
    assert 0 < await there.command("PTTL", there.keys.away(RUN)) <= NOTED_MS


async def test_of_a_run_that_has_been_here_before_and_never_began_to_come_back_nothing_changes(queue: Queue) -> None:
    await published(queue)
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    departure = await departed(queue)
    await copied(queue, there, departure)
    await moving.clear(queue.store, RUN, departure)
    noted = await queue.command("HGETALL", queue.keys.away(RUN))
    await queue.store.arrive(RUN, "begin", mover="m2", cell="b")
    assert await moving.refuse(queue.store, RUN, "2", "m3", "b") == "refused"
    assert await queue.command("HGETALL", queue.keys.away(RUN)) == noted
    assert await queue.store.arrive(RUN, "page", mover="m2", first=True) == ("stale", "")


async def test_a_run_that_has_come_is_not_refused(queue: Queue) -> None:
    await published(queue)
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    departure = await departed(queue)
    await copied(queue, there, departure)
    assert await moving.refuse(there.store, RUN, departure, "m2", "a") == "here"
    assert len(await there.results()) == 1
    await moving.depart(there.store, RUN, "c")
    assert await moving.refuse(there.store, RUN, departure, "m2", "a") == "here"
    assert await moving.refuse(there.store, RUN, "another", "m2", "a") == "left"


async def test_who_refuses_it_removes_nothing_of_a_move_that_has_begun_since(queue: Queue) -> None:
    await published(queue)
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    assert await there.store.refuse(RUN, "1", [], mover="m2", cell="a") == "refused"
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    departure = await departed(queue)
    page = await pages.page(queue.store, RUN, departure, "")
    more = pages.RunPage(page.writes, "more", page.namespace)
    assert await moving.take(there.store, RUN, MOVER, departure, more, first=True) == ("written", "")
    run = there.keys.run(RUN)
    assert await there.store.refuse(RUN, "1", [run], mover="m2", cell="a") == "stale"
    assert await there.command("EXISTS", run) == 1
