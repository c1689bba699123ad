"""thin: consumers of a run's results that are more than a trainer has end, and nothing that it holds is lost."""

import asyncio

import pytest
from redis.exceptions import ResponseError

from prorl_mq.schema.intake import TRAINERS
from prorl_mq.store.direct import consumers
from tests.support.queue import RUN, Queue
from tests.support.watch import Watch
from tests.verbs.lost import Act, case

pytestmark = pytest.mark.anyio
ENTRIES = ("1-1", "2-1", "3-1", "4-1")


@case("thin", "few")
async def _(queue: Queue) -> Act:
    await readers(queue, 3)
    return lambda q: q.store.thin(RUN, most=1, last="3-1", waiting=3)


async def readers(queue: Queue, count: int) -> None:
    """Each of them has read one result and holds it."""
    stream = queue.keys.results(RUN)
    for entry in ENTRIES:
        await queue.command("XADD", stream, entry, "r", "a result")
    await consumers.create(queue.store, RUN)
    for number in range(count):
        await queue.command("XREADGROUP", "GROUP", TRAINERS, f"c{number}", "COUNT", 1, "STREAMS", stream, ">")


async def names(queue: Queue) -> list[str]:
    return [row[1].decode() for row in await queue.command("XINFO", "CONSUMERS", queue.keys.results(RUN), TRAINERS)]


async def thin(queue: Queue, *, most: int, waiting: int, last: str = "3-1") -> str:
    return await queue.store.thin(RUN, most=most, last=last, waiting=waiting)


async def test_as_many_as_there_may_be_stay(queue: Queue, watch: Watch) -> None:
    await readers(queue, 3)
    await queue.command("XACK", queue.keys.results(RUN), TRAINERS, *ENTRIES)
    await watch.look()
    assert await thin(queue, most=3, waiting=0) == "few"
    await watch.nothing_changed()


async def test_a_run_without_results_or_without_the_group_has_none(queue: Queue) -> None:
    assert await thin(queue, most=0, waiting=0) == "few"
    await queue.command("XGROUP", "CREATE", queue.keys.results(RUN), "another", "0", "MKSTREAM")
    assert await thin(queue, most=0, waiting=0) == "few"


async def test_those_that_hold_nothing_end_the_longest_idle_first_and_nothing_is_given_again(queue: Queue) -> None:
    await readers(queue, 3)
    stream = queue.keys.results(RUN)
    await queue.command("XACK", stream, TRAINERS, "1-1", "3-1")
    await asyncio.sleep(0.01)  # idle for longer than what follows, in Redis's milliseconds
    await queue.command("XREADGROUP", "GROUP", TRAINERS, "c0", "STREAMS", stream, "0")
    assert await thin(queue, most=2, waiting=1) == "thinned"
    assert await names(queue) == ["c0", "c1"]
    assert await thin(queue, most=1, waiting=1) == "thinned"
    assert await names(queue) == ["c1"]
    assert (await queue.command("XPENDING", stream, TRAINERS))[0] == 1
    assert (await consumers.delivered(queue.store, RUN)) == consumers.Delivered("3-1", 1, 1)


async def test_the_group_begins_again_where_too_many_hold_something(queue: Queue) -> None:
    await readers(queue, 3)
    assert await thin(queue, most=2, waiting=3) == "begun"
    assert await consumers.delivered(queue.store, RUN) == consumers.Delivered("0-0", 0, 0)
    [(_, given)] = await queue.command("XREADGROUP", "GROUP", TRAINERS, "me", "STREAMS", queue.keys.results(RUN), ">")
    assert [entry.decode() for entry, _ in given] == list(ENTRIES)


@pytest.mark.parametrize("moved", ["acknowledged", "read"])
async def test_what_was_acknowledged_or_read_since_the_look_is_not_given_again(
    queue: Queue, watch: Watch, moved: str
) -> None:
    await readers(queue, 3)
    stream = queue.keys.results(RUN)
    if moved == "acknowledged":
        await queue.command("XACK", stream, TRAINERS, "1-1")
    else:
        await queue.command("XREADGROUP", "GROUP", TRAINERS, "c0", "COUNT", 1, "STREAMS", stream, ">")
        await queue.command("XACK", stream, TRAINERS, "4-1")  # as many wait as did
    await watch.look()
    assert await thin(queue, most=1, waiting=3) == "moved"
    if moved == "read":
        await watch.nothing_changed()
    else:  # its consumer held nothing any more
        assert set(await watch.changes()) == {"- results:acme:r consumer c0"}


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "control"])
async def test_a_reader_that_waits_meanwhile_finds_the_group(queue: Queue, at_once: bool) -> None:
    await readers(queue, 4)
    stream = queue.keys.results(RUN)
    words = ("XREADGROUP", "GROUP", TRAINERS, "me", "BLOCK", 30_000, "STREAMS", stream, ">")
    waiting = asyncio.ensure_future(queue.command(*words))
    async with asyncio.timeout(20):
        while b"blocked_clients:1" not in await queue.command("INFO", "clients"):
            await asyncio.sleep(0.01)
    if at_once:
        assert await thin(queue, most=2, last="4-1", waiting=4) == "begun"
        await queue.command("XADD", stream, "5-1", "r", "a result")
        assert await waiting
        return
    await queue.command("XGROUP", "DESTROY", stream, TRAINERS)
    await consumers.create(queue.store, RUN)
    with pytest.raises(ResponseError, match=r"NOGROUP|no longer exists"):
        await waiting
