"""open_epoch: on a server that may have lost its last second nobody writes before the next epoch is open."""

import asyncio

import pytest

from prorl_mq.schema.ids import time_of
from prorl_mq.schema.items import Advance, Entry
from prorl_mq.schema.messages import Stage
from prorl_mq.store.core import NO_EPOCH
from prorl_mq.store.scripts import script
from tests.support.epoch import another_server
from tests.support.queue import Queue
from tests.support.watch import Watch
from tests.verbs.places import JOB

pytestmark = pytest.mark.anyio
HOLD = {"name": "a", "beat": 1, "lease_ms": 1_000, "seen": ""}


async def number(queue: Queue) -> int:
    return int(await queue.command("HGET", queue.keys.epoch, "number"))


async def test_whoever_calls_a_server_opens_one_epoch(queue: Queue) -> None:
    await queue.admitted()
    first = await number(queue)
    assert (await queue.store.open_epoch()).partition("-")[0] == str(first)
    await another_server(queue)
    opened = await asyncio.gather(*(queue.worker(f"w{place}").store.open_epoch() for place in range(8)))
    assert {epoch.partition("-")[0] for epoch in opened} == {str(first + 1)}
    assert len(set(opened)) == 1


async def test_a_script_writes_nothing_on_a_server_without_an_epoch(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    await another_server(queue)
    await watch.look()
    with pytest.raises(Exception, match=NO_EPOCH):
        await script("hold")(queue.redis, [queue.keys.epoch, queue.keys.duty("admit")], HOLD)
    await watch.nothing_changed()


async def test_a_caller_opens_the_epoch_that_it_misses(queue: Queue) -> None:
    await queue.admitted()
    before = await number(queue)
    await another_server(queue)
    assert await queue.store.hold("admit", lease_ms=1_000) == "held"
    assert await number(queue) == before + 1


async def test_a_token_of_a_lost_second_is_never_given_again(queue: Queue) -> None:
    """Two workers with one token: what the fence cannot tell apart."""
    await queue.admitted(n=1)
    [entry] = await queue.read(Stage.INIT)
    saved = await queue.command("DUMP", queue.keys.job(JOB)), await queue.command("DUMP", queue.keys.epoch)
    [first] = await queue.claim(Stage.INIT, [entry])
    await queue.command("RESTORE", queue.keys.job(JOB), 0, saved[0], "REPLACE")
    await queue.command("RESTORE", queue.keys.epoch, 0, saved[1], "REPLACE")
    await another_server(queue)
    [second] = await queue.claim(Stage.INIT, [entry])
    assert second.granted
    assert second.token != first.token


async def test_time_does_not_go_back_on_a_server_whose_clock_is_behind(queue: Queue) -> None:
    """A promoted replica on another host: what the service wrote down of its time came with the data."""
    await queue.admitted()
    ahead_ms = await queue.store.now_ms() + 3_600_000
    await queue.command("HSET", queue.keys.epoch, "floor_ms", ahead_ms)
    await another_server(queue)
    await queue.store.open_epoch()
    clock = await queue.store.clock()
    assert (clock.opened_ms, clock.floor_ms, clock.now_ms) == (ahead_ms, ahead_ms, ahead_ms)


async def test_the_same_epoch_number_on_another_server_gives_other_tokens(queue: Queue) -> None:
    """The opening of an epoch may itself be in the second that is lost."""
    await queue.admitted(n=1)
    [entry] = await queue.read(Stage.INIT)
    saved = await queue.command("DUMP", queue.keys.job(JOB)), await queue.command("DUMP", queue.keys.epoch)
    tokens = set()
    for place in range(2):
        await queue.command("RESTORE", queue.keys.job(JOB), 0, saved[0], "REPLACE")
        await queue.command("RESTORE", queue.keys.epoch, 0, saved[1], "REPLACE")
        await another_server(queue)
        [claim] = await queue.worker(f"new-{place}").claim(Stage.INIT, [entry])  # one that has seen neither
        tokens.add((await number(queue), claim.token))
    assert len({epoch for epoch, _ in tokens}) == 1
    assert len({token for _, token in tokens}) == 2


@pytest.mark.parametrize("opener", ["the one that saw it", "another one, before"])
async def test_a_number_that_was_lost_with_its_opening_is_not_used_again(queue: Queue, opener: str) -> None:
    """Cursors begin with it: a reader would pass over what is published under the same ones."""
    await queue.admitted(n=1)
    saved = await queue.command("DUMP", queue.keys.epoch)
    await another_server(queue)
    await queue.store.open_epoch()
    lost = await number(queue)
    await queue.command("RESTORE", queue.keys.epoch, 0, saved, "REPLACE")
    await another_server(queue)
    if opener != "the one that saw it":
        await queue.worker("new").store.open_epoch()
        assert await number(queue) == lost
    assert await queue.store.hold("admit", lease_ms=1_000) == "held"
    assert await number(queue) == lost + 1
    await queue.worker("new").store.hold("settle", lease_ms=1_000)
    assert await number(queue) == lost + 1


async def test_ids_lie_above_those_of_the_epoch_before_though_the_clock_goes_back(queue: Queue) -> None:
    """A reader's cursor must never stand above what comes next."""
    held = await queue.hold(Stage.INIT)
    await another_server(queue)
    await queue.store.open_epoch()
    await queue.command("HSET", queue.keys.epoch, "offset_ms", -3_600_000, "floor_ms", 0)
    await queue.store.advance([Advance(held, None, b"")])
    [(entry, _)] = await queue.command("XRANGE", queue.keys.stage(Stage.RUN), "-", "+")
    assert int(entry.partition(b"-")[0]) > int(held.entry.partition("-")[0])
    assert time_of(entry.decode()) < time_of(held.entry)


async def test_within_an_epoch_ids_grow_though_the_clock_goes_back(queue: Queue) -> None:
    await queue.admitted("a")
    await queue.command("HSET", queue.keys.epoch, "offset_ms", -3_600_000)
    await queue.admitted("b", batch="b2")
    rows = await queue.command("XRANGE", queue.keys.stage(Stage.INIT), "-", "+")
    ids = [tuple(map(int, entry.split(b"-"))) for entry, _ in rows]
    assert len(ids) == 2
    assert ids == sorted(set(ids))


async def test_a_commit_from_before_a_restart_is_still_taken(queue: Queue) -> None:
    """Redis came back with everything: the work of a living worker counts."""
    held = await queue.hold(Stage.INIT)
    await another_server(queue)
    assert await queue.store.advance([Advance(held, None, b"")]) == ["advanced"]
    assert await queue.store.advance([Advance(held, None, b"")]) == ["already"]


async def test_an_entry_of_the_lost_second_is_no_other_jobs(queue: Queue) -> None:
    """Its claim removes the entry that it names: that must not be one that was added after the restart."""
    await queue.admitted(n=1)
    [lost] = await queue.read(Stage.INIT)
    await queue.command("DEL", queue.keys.stage(Stage.INIT), queue.keys.job(JOB))
    await queue.prepare()
    await another_server(queue)
    await queue.admitted("h", batch="b2")
    assert [claim.status for claim in await queue.claim(Stage.INIT, [Entry(JOB, lost.entry)])] == ["gone"]
    assert await queue.command("XLEN", queue.keys.stage(Stage.INIT)) == 1
