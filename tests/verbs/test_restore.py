"""restore: a run that has left continues in its cell, unless the other one may have opened it."""

from typing import Any

import pytest

from prorl_mq.schema.ids import GroupRef
from prorl_mq.schema.intake import ANSWER_FIELD
from prorl_mq.service.fsck.look import look
from prorl_mq.store.moves import moving, pages
from tests.support.queue import RUN, Queue
from tests.verbs.lost import Act, case
from tests.verbs.moved import MOVER, copied, departed, other, published

pytestmark = pytest.mark.anyio


@case("restore", "gone")
async def _(queue: Queue) -> Act:
    await queue.submit()
    departure = await departed(queue)
    return lambda q: q.store.restore(RUN, departure, "ask")


async def whole(queue: Queue) -> dict[bytes, Any]:
    """Every key, but for times, tokens and what only says that somebody shall look."""
    found = {}
    left_out = {queue.keys.epoch, queue.keys.leaving, queue.keys.admit_bell, queue.keys.draw_bell, queue.keys.events}
    for key in sorted(await queue.command("KEYS", f"{queue.keys.prefix}*")):
        if key.decode() in left_out:
            continue
        kind = (await queue.command("TYPE", key)).decode()
        read = {
            "string": ("GET", key), "hash": ("HGETALL", key), "set": ("SMEMBERS", key),
            "zset": ("ZRANGE", key, 0, -1, "WITHSCORES"), "stream": ("XRANGE", key, "-", "+"),
        }[kind]  # fmt: skip
        value = await queue.command(*read)
        if kind == "hash":
            pairs = dict(zip(value[::2], value[1::2], strict=True))
            value = {name: each for name, each in pairs.items() if name != b"seen"}
        found[key] = sorted(value) if kind == "set" else value
    return found


async def test_all_is_as_it_was(queue: Queue) -> None:
    await published(queue)
    await queue.command("SADD", queue.keys.intakes, RUN)
    await queue.command("SADD", queue.keys.intakes_of("acme"), "r")
    await queue.store.hold_run(RUN, 1 << 50)
    await queue.store.configure(RUN, b'{"weight":3}')
    before = await whole(queue)
    departure = await departed(queue)
    assert await whole(queue) != before
    assert await queue.store.restore(RUN, departure, "ask") == "restored"
    assert await whole(queue) == before
    assert (await look(queue.store)).violations == []
    assert await queue.command("ZSCORE", queue.keys.admit_bell, RUN) is not None


async def test_answers_that_were_given_meanwhile_come_behind_its_results(queue: Queue) -> None:
    await published(queue)
    [result] = await queue.results()
    departure = await departed(queue)
    await queue.command("XADD", queue.keys.results(RUN), "1-1", ANSWER_FIELD, "it has left")
    assert await queue.store.restore(RUN, departure, "ask") == "restored"
    rows = await queue.command("XRANGE", queue.keys.results(RUN), "-", "+")
    assert rows[0][0].decode() == result.cursor
    assert rows[1][1] == [ANSWER_FIELD, b"it has left"]
    assert await queue.command("ZRANGE", queue.keys.answers(RUN), 0, -1) == [rows[1][0]]


async def test_a_run_that_the_other_cell_may_have_opened_stays_away(queue: Queue) -> None:
    await published(queue)
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    departure = await departed(queue)
    assert await copied(queue, there, departure) == "opened"
    assert await queue.store.restore(RUN, departure, "sure") == "given", "nobody has asked the other cell"
    assert await moving.refuse(there.store, RUN, departure, "m2", "a") == "here"
    assert await queue.store.restore(RUN, departure, "keep") == "kept"
    assert await queue.store.restore(RUN, departure, "sure") == "given"
    assert await moving.clear(queue.store, RUN, departure) == "vacated"
    assert await queue.store.restore(RUN, departure, "sure") == "gone"


async def test_a_run_comes_back_by_its_own_departure_alone(queue: Queue) -> None:
    await published(queue)
    departure = await departed(queue)
    assert await queue.store.restore(RUN, "another", "ask") == "gone"
    assert (await moving.whereabouts(queue.store, RUN)).state == "left"
    assert await queue.store.restore(RUN, departure, "ask") == "restored"
    assert await queue.store.restore(RUN, departure, "ask") == "gone"


@pytest.mark.parametrize("refused", [True, False])
async def test_a_mover_that_has_all_of_it_opens_it_no_more(queue: Queue, *, refused: bool) -> None:
    """The control: where the other cell does not refuse it, the run is in two cells."""
    await published(queue)
    there = await other(queue)
    await there.store.arrive(RUN, "begin", mover=MOVER, cell="a")
    departure = await departed(queue)
    page = await pages.page(queue.store, RUN, departure, "")
    assert page.after is None
    more = pages.RunPage(page.writes, "more", page.namespace)
    assert await moving.take(there.store, RUN, MOVER, departure, more, first=True) == ("written", "")
    assert await queue.store.restore(RUN, departure, "ask") == "given"
    if refused:
        assert await moving.refuse(there.store, RUN, departure, "m2", "a") == "refused"
        assert (await there.command("KEYS", f"{there.keys.prefix}group:*")) == []
    assert await queue.store.restore(RUN, departure, "sure") == "restored"
    late = await moving.take(there.store, RUN, MOVER, departure, page, first=True)
    assert late == (("stale", "") if refused else ("opened", departure))
    assert await queue.command("EXISTS", queue.keys.group(GroupRef(f"{RUN}:waits"))) == 1
