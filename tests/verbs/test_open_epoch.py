"""open_epoch: on a server that may have lost its last second nobody writes before the next epoch is open."""

import asyncio
from typing import Any

import pytest

from prorl_mq.errors import ServerUnfit
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
    held = await queue.hold(Stage.INIT)
    saved = await dumped(queue)
    await queue.store.release([held])
    first = (await queue.snapshot(JOB)).token
    await restored(queue, saved)
    await another_server(queue)
    assert await queue.store.release([held]) == ["released"]
    assert (await queue.snapshot(JOB)).token not in {first, held.token}


async def dumped(queue: Queue) -> dict[str, bytes]:
    keys = queue.keys
    return {key: await queue.command("DUMP", key) for key in (keys.job(JOB), keys.epoch, keys.stage(Stage.INIT))}


async def restored(queue: Queue, saved: dict[str, bytes]) -> None:
    """The server has lost what came after."""
    for key, data in saved.items():
        await queue.command("RESTORE", key, 0, data, "REPLACE")


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
    held = await queue.hold(Stage.INIT)
    saved = await dumped(queue)
    tokens = set()
    for _ in range(2):
        await restored(queue, saved)
        await another_server(queue)
        assert await queue.worker("w1").store.release([held]) == ["released"]  # by one that has seen neither
        tokens.add((await number(queue), (await queue.snapshot(JOB)).token))
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


async def test_a_process_of_another_protocol_is_refused_in_one_line(queue: Queue) -> None:
    await queue.admitted()
    for spoken, told in (("1", "1"), ("", "1"), ("3", "3")):
        await queue.command("HSET", queue.keys.epoch, "protocol", spoken)
        if not spoken:
            await queue.command("HDEL", queue.keys.epoch, "protocol")  # as the first release left it
        with pytest.raises(
            ServerUnfit, match=f"speaks protocol {told}, this release 2, and jobs are in flight there: .*NAMESPACE"
        ) as raised:
            await queue.worker("new").store.hold("admit", lease_ms=1_000)
        assert "\n" not in str(raised.value)


async def test_a_namespace_without_jobs_in_flight_is_taken_over(queue: Queue) -> None:
    """An upgrade: results that nobody has acknowledged, and batches that wait, are the same to both."""
    await queue.submit()
    await queue.command("HDEL", queue.keys.epoch, "protocol")
    assert await queue.worker("new").store.hold("admit", lease_ms=1_000) == "held"
    assert await queue.command("HGET", queue.keys.epoch, "protocol") == b"2"


async def test_a_new_namespace_speaks_this_releases_protocol(queue: Queue) -> None:
    assert await queue.command("HGET", queue.keys.epoch, "protocol") == b"2"


async def opening(queue: Queue, **about: str) -> list[Any]:
    """Answers of `open_epoch` itself, in replicated mode."""
    keys = [queue.keys.epoch, queue.keys.in_flight]
    reply: list[Any] = await script("open_epoch")(
        queue.redis, keys, {"seen": "", "protocol": "2", "confirmed": "", **about}
    )
    return [part.decode() if isinstance(part, bytes) else part for part in reply]


async def test_in_replicated_mode_nobody_writes_before_replicas_have_the_opening(queue: Queue, watch: Watch) -> None:
    await queue.admitted()
    await queue.command("HSET", queue.keys.epoch, "acks", 1, "server", "")
    epoch, acks, state = await opening(queue)
    assert (acks, state) == (1, "opening")
    assert await opening(queue) == [epoch, 1, "opening"], "asked again, it is the same one"
    assert await opening(queue, confirmed="1-00000000") == [epoch, 1, "opening"], "another one was confirmed"
    await watch.look()
    with pytest.raises(Exception, match=NO_EPOCH):
        await script("hold")(queue.redis, [queue.keys.epoch, queue.keys.duty("admit")], HOLD)
    await watch.nothing_changed()
    assert await opening(queue, confirmed=epoch) == [epoch, 1, "open"]
    assert await opening(queue) == [epoch, 1, "open"]
