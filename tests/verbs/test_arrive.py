"""arrive: a run comes into a cell page by page, and nothing of it runs there before all of it has come."""

from typing import Any

import pytest
from redis.exceptions import ResponseError

from prorl_mq.errors import InvalidBatch, RunArriving, RunMoved
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.service.fsck.look import look
from prorl_mq.store import runs
from prorl_mq.store.moves import moving, pages
from prorl_mq.store.moves.pages import Copied, RunPage
from prorl_mq.store.verbs.moves import BEGUN_MS
from tests.support.queue import RUN, Queue
from tests.verbs.lost import Act, case
from tests.verbs.moved import MOVER, copied, departed, other, published

pytestmark = pytest.mark.anyio


@case("arrive", ("begun", ""))
async def _(_queue: Queue) -> Act:
    return lambda q: q.store.arrive(RUN, "begin", mover=MOVER, cell="a")


async def test_all_of_a_run_comes_and_its_results_name_their_blobs_here(queue: Queue) -> None:
    await published(queue)
    there = await other(queue)
    [before] = await queue.results()
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    departure = await departed(queue)
    assert await copied(queue, there, departure) == "opened"
    [after] = await there.results()
    assert after.cursor == before.cursor
    [sample] = decode(after.record, GroupRecord).samples
    assert sample.trajectory is not None
    assert sample.trajectory.startswith(there.keys.blobs(RUN))
    assert await there.command("EXISTS", sample.trajectory) == 1
    assert await runs.known(there.store) == [RUN]
    report = await look(there.store)
    assert report.violations == []


@pytest.mark.parametrize(("field", "value"), [("t:0", "1\tfail\trun\t\tw\t{}\n"), ("family", "{}"), ("s:7", "\xc1{}")])
async def test_a_text_that_names_a_blob_comes_as_it_is(queue: Queue, field: str, value: str) -> None:
    """A line of events quotes an error, and what cannot be decoded was of no use before."""
    await published(queue)
    there = await other(queue)
    group, text = GroupRef(f"{RUN}:waits"), value.format(f"{queue.keys.prefix}blob:x").encode("latin-1")
    await queue.command("HSET", queue.keys.group(group), field, text)
    await queue.command("XADD", queue.keys.results(RUN), "*", "r", text, "other", "x")
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    assert await copied(queue, there, await departed(queue)) == "opened"
    assert await there.command("HGET", there.keys.group(group), field) == text
    [*_, (_, fields)] = await there.command("XRANGE", there.keys.results(RUN), "-", "+")
    assert fields == [b"r", text, b"other", b"x"]


async def test_nothing_of_it_is_written_to_but_by_its_move(queue: Queue) -> None:
    await published(queue)
    there = await other(queue)
    assert await there.store.arrive(RUN, "begin", mover=MOVER, cell="a") == ("begun", "")
    departure = await departed(queue)
    page = await pages.page(queue.store, RUN, departure, "")
    for first in (True, False):  # a page may be written again
        more = RunPage(page.writes, "more", page.namespace)
        assert await moving.take(there.store, RUN, MOVER, departure, more, first=first) == ("written", "")
    batch, group = there.new("late", batch="late")
    with pytest.raises(RunArriving):
        await there.store.submit(batch, [group])
    assert await runs.known(there.store) == []
    assert await copied(queue, there, departure) == "opened"
    assert len(await there.results()) == 1


async def test_of_two_that_move_it_the_one_that_began_last_writes(queue: Queue) -> None:
    await published(queue)
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    departure = await departed(queue)
    await there.store.arrive(RUN, "begin", mover="another", cell="a")
    assert await copied(queue, there, departure) == "stale"


async def test_a_run_that_is_here_is_not_written_over(queue: Queue) -> None:
    await queue.submit()
    assert await queue.store.arrive(RUN, "begin", mover=MOVER, cell="a") == ("here", "")
    assert (await queue.store.arrive(RUN, "open", mover=MOVER))[0] == "here"


@pytest.mark.parametrize(
    ("command", "key"),
    [("SET", f"run:{RUN}"), ("HSET", "run:acme:other"), ("HSET", f"pool:{RUN}"), ("HSET", "settings:tenants")],
)
async def test_a_page_writes_to_nothing_but_its_run(queue: Queue, command: str, key: str) -> None:
    await queue.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    page = RunPage([Copied(command, key, [b"x", b"y"])], "more", "elsewhere")
    with pytest.raises(InvalidBatch, match="is no part of run 'r'"):
        await moving.take(queue.store, RUN, MOVER, "1", page, first=True)


@pytest.mark.parametrize(
    "facts",
    [
        None,
        {},
        {"seen": True},
        {"seen": "yesterday"},
        {"seen": "nan"},
        {"seen": "1", "paused": "no number"},
        {"seen": "1", "unacked": "-1"},
        {"seen": "1", "cancellable": ["acme:other:b"]},
        {"seen": "1", "cancellable": [1]},
        {"seen": "1", "dapo": ["nonsense", "1"]},
        {"seen": "1", "dapo": [f"{RUN}:b"]},
        {"seen": "1", "answers": ["nonsense", "1"]},
        {"seen": "1", "answers": ["1-1", "x"]},
    ],
)
async def test_facts_of_anything_but_its_run_are_refused_before_any_is_written(queue: Queue, facts: Any) -> None:
    await queue.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    page = RunPage([Copied("HSET", f"run:{RUN}", [b"x", b"y"])], None, "elsewhere", facts)
    with pytest.raises(InvalidBatch, match="run 'r'"):
        await moving.take(queue.store, RUN, MOVER, "1", page, first=True)
    assert await queue.command("EXISTS", queue.keys.run(RUN), queue.keys.runs, queue.keys.dapo) == 0


async def test_facts_of_its_run_are_taken(queue: Queue) -> None:
    """The control."""
    await queue.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    facts = {"seen": "1", "cancellable": [RUN, f"{RUN}:b"], "dapo": [f"{RUN}:b", "2"], "answers": ["1-1", "3"]}
    page = RunPage([Copied("HSET", f"run:{RUN}", [b"x", b"y"])], None, "elsewhere", facts)
    assert await moving.take(queue.store, RUN, MOVER, "1", page, first=True) == ("opened", "1")
    assert await queue.command("ZRANGE", queue.keys.dapo, 0, -1) == [f"{RUN}:b".encode()]


async def test_a_command_that_fails_fails_its_page(queue: Queue) -> None:
    await queue.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    page = RunPage([Copied("ZADD", f"backlog:{RUN}", [b"no number", b"y"])], "more", "elsewhere")
    with pytest.raises(ResponseError, match="not a valid float"):
        await moving.take(queue.store, RUN, MOVER, "1", page, first=True)


async def test_a_run_of_which_nothing_comes_is_soon_expected_no_more(queue: Queue) -> None:
    """Each `begin` prolongs that, and the first page makes it last."""
    away = queue.keys.away(RUN)
    await queue.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    assert 0 < await queue.command("PTTL", away) <= BEGUN_MS
    await queue.command("PEXPIRE", away, 1_000)
    await queue.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    assert await queue.command("PTTL", away) > 1_000
    await moving.take(queue.store, RUN, MOVER, "1", RunPage([], "more", "elsewhere"), first=True)
    await queue.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    assert await queue.command("PTTL", away) == -1


async def test_a_run_that_shall_come_back_is_where_it_is_until_its_first_page_comes(queue: Queue) -> None:
    """It may stay there, since its jobs do not end: then this cell names the other one as long as before."""
    await published(queue)
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    departure = await departed(queue)
    await copied(queue, there, departure)
    await moving.clear(queue.store, RUN, departure)
    assert await queue.store.arrive(RUN, "begin", mover="m2", cell="b") == ("begun", "")
    assert isinstance(await moving.where(queue.store, RUN), RunMoved)
    assert await queue.command("PTTL", queue.keys.away(RUN)) > BEGUN_MS
    assert await queue.store.arrive(RUN, "page", mover=MOVER) == ("stale", "")
    assert await queue.store.arrive(RUN, "page", mover="m2", first=True) == ("written", "")
    assert isinstance(await moving.where(queue.store, RUN), RunArriving)
    assert await queue.command("PTTL", queue.keys.away(RUN)) == -1


async def test_a_page_without_a_beginning_is_refused(queue: Queue) -> None:
    assert await queue.store.arrive(RUN, "page", mover="") == ("stale", "")
