"""What a read may send, and what becomes of a write whose reply is lost."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_mq.errors import RedisUnavailable
from prorl_mq.store import bells
from prorl_mq.store.core import READING, Repeat
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from tests.support.proxy import LossyProxy, lossy
from tests.support.queue import RUN, Queue
from tests.verbs.reserved import BATCH

pytestmark = pytest.mark.anyio


@pytest.fixture
async def proxied(settings: RedisSettings, keys: Keys) -> AsyncIterator[tuple[LossyProxy, Store]]:
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        async with lossy(settings, Path(name)) as (proxy, through):
            client = connect(through)
            yield proxy, Store(client, keys, name="test", outage_ms=20_000)
            await client.aclose()


@pytest.mark.parametrize("name", sorted(READING))
async def test_a_command_that_may_be_read_with_changes_nothing(name: str, queue: Queue) -> None:
    """The server says so; it keeps no such mark for INFO, which reads no key."""
    [about] = await queue.command("COMMAND", "INFO", name)
    flags = {flag.decode() for flag in about[2]}
    assert not flags & {"write", "blocking"} or name == "XREAD"


@pytest.mark.parametrize("name", ["SET", "HSET", "DEL", "ZPOPMIN", "BZMPOP", "XTRIM", "EVAL", "FLUSHALL", "set"])
async def test_a_read_refuses_a_command_that_may_change_something(name: str, queue: Queue) -> None:
    store, before = queue.store, await queue.command("DBSIZE")
    for send in (store.read(name, "k"), store.wait_read(name, "k"), store.read_many([("GET", "k"), (name, "k")])):
        with pytest.raises(ValueError, match=f"'{name}' may change something"):
            await send
    assert await queue.command("DBSIZE") == before


async def test_no_command_that_the_server_marks_as_a_write_is_read_with(queue: Queue) -> None:
    """Of all that it knows. A command with a subcommand that writes, and one that runs a script, count as writes."""
    known = await queue.command("COMMAND")
    marks = {about[0].decode().upper(): set(about[2]).union(*(each[2] for each in about[9])) for about in known}
    writing = {name for name, flags in marks.items() if flags & {b"write", b"noscript"} and name != "XREAD"}
    writing |= {name for name in marks if name.startswith(("EVAL", "FCALL"))}
    assert {"BZPOPMIN", "EVAL_RO", "EVALSHA", "FCALL", "GETEX", "SORT", "XREADGROUP"} <= writing
    for name in sorted(writing):
        with pytest.raises(ValueError, match="may change something"):
            await queue.store.read(name, "k")


async def test_a_write_whose_repeat_changes_nothing_is_repeated(
    proxied: tuple[LossyProxy, Store], queue: Queue
) -> None:
    proxy, store = proxied
    proxy.lose_command("ZADD")
    assert await store.write("ZADD", store.keys.leases, 1, "job", repeat=Repeat.SAME) == 0
    assert proxy.lost == 1
    assert await queue.command("ZCARD", store.keys.leases) == 1


async def test_a_write_that_may_be_done_once_is_not_repeated(proxied: tuple[LossyProxy, Store], queue: Queue) -> None:
    proxy, store = proxied
    proxy.lose_command("XADD")
    with pytest.raises(RedisUnavailable):
        await store.write("XADD", store.keys.events, "*", "e", "x", repeat=Repeat.ONCE)
    assert await queue.command("XLEN", store.keys.events) == 1


async def test_a_bell_that_is_rung_with_a_lost_reply_holds_one_mark(
    proxied: tuple[LossyProxy, Store], queue: Queue
) -> None:
    proxy, store = proxied
    proxy.lose_command("ZADD")
    await bells.ring_draw(store, BATCH)
    assert proxy.lost == 1
    assert await queue.command("ZRANGE", store.keys.draw_bell, 0, -1) == [BATCH.encode()]


@pytest.mark.parametrize(("command", "within_s"), [("BZMPOP", 5.0), ("ZPOPMIN", 0.0)])
async def test_lost_marks_of_a_bell_are_answered_with_none(
    proxied: tuple[LossyProxy, Store], queue: Queue, command: str, within_s: float
) -> None:
    """The marks went with the reply: whoever waits must look at everything."""
    proxy, store = proxied
    await queue.submit()
    proxy.lose_command(command)
    assert await bells.to_admit(store, within_s=within_s) is None
    assert proxy.lost == 1
    assert await queue.command("ZCARD", store.keys.admit_bell) == 0


async def test_the_marks_of_a_bell_are_taken_once(queue: Queue) -> None:
    await queue.submit("g")
    await queue.submit("h", batch="b2")
    assert await bells.to_admit(queue.store, within_s=5.0) == [RUN]
    assert await bells.to_admit(queue.store) == []
