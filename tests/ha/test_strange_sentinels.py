"""Sentinels that are silent, or name an earlier primary, and servers that are no primary any more: whoever looks for
the primary finds it, in a time that is known.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence

import pytest

from prorl_mq.schema.rendezvous import Place
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server import connection, primary, replicas
from prorl_mq.store.server.connection import OUTAGES, RedisClient, RedisSettings, ask, connect
from prorl_mq.store.store import Store
from tests.ha.strange import ENTERING, Say, dripping, halting, listening, sentinel, server, silent

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
NEVER_S = 3600.0
SOON_S = 0.5
NOT_S = 0.3  # what takes longer is taken to hang
FOLLOWED = (
    "role:master\r\nconnected_slaves:1\r\nmin_slaves_good_slaves:1\r\nslave0:ip=127.0.0.1,port={},state=online\r\n"
)


def url_of(ports: Sequence[int]) -> str:
    places = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"redis+sentinel://{places}/queue?sentinel_password=secret"


async def port_found(ports: Sequence[int]) -> int:
    """The port of the primary that these Sentinels lead to."""
    found = await primary.of(Place(url=url_of(ports)), "ha")
    return int(found.url.rpartition(":")[2].partition("/")[0])


async def hangs(work: Awaitable[object]) -> bool:
    """True if it takes longer than it may; raises what it raises."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait([task], timeout=NOT_S)
    task.cancel()
    if done:
        await task
    return not done


@contextlib.asynccontextmanager
async def client(ports: Sequence[int]) -> AsyncIterator[RedisClient]:
    made = connect(RedisSettings(url=url_of(ports), answer_s=NEVER_S))
    try:
        yield made
    finally:
        await made.aclose()


@pytest.mark.parametrize("bounded", [True, False])
async def test_where_most_sentinels_are_silent_the_others_count_soon(
    monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """The control: who waits for each of them as long as it takes."""
    monkeypatch.setattr(primary, "ASK_S", SOON_S if bounded else NEVER_S)
    good = sentinel(1, epoch=1)
    async with listening(silent, silent, halting, halting, dripping, dripping, good) as ports:
        looks = [port_found([ports[place], ports[place + 1], ports[-1]]) for place in (0, 2, 4)]
        if bounded:
            async with asyncio.timeout(20):
                assert await asyncio.gather(*looks) == [1, 1, 1]
        else:
            assert await asyncio.gather(*map(hangs, looks)) == [True, True, True]


@pytest.mark.parametrize("enough", [True, False])
async def test_one_silent_sentinel_of_three_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, enough: bool) -> None:
    """The control asks for all three answers."""
    answers = primary._answers
    monkeypatch.setattr(primary, "ASK_S", NEVER_S)
    if not enough:
        monkeypatch.setattr(primary, "_answers", lambda asked, _: answers(asked, len(asked)))
    async with listening(silent, sentinel(1, epoch=1), sentinel(1, epoch=1)) as ports:
        if enough:
            assert await port_found(ports) == 1
        else:
            assert await hangs(port_found(ports))


@pytest.mark.parametrize("without", ["", "a majority", "its epoch"])
async def test_a_sentinel_that_names_an_earlier_primary_leads_nobody_there(
    monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    """It answers first. The controls: who takes the first answer, and who takes any of them."""
    answers = primary._answers
    if without == "a majority":
        monkeypatch.setattr(primary, "_answers", lambda asked, _: answers(asked, 1))
    if without == "its epoch":
        monkeypatch.setattr(primary, "max", lambda told: told[0], raising=False)
    async with listening(sentinel(1, epoch=1), sentinel(2, epoch=2), sentinel(2, epoch=2), slowly=0.03) as ports:
        assert await port_found(ports) == (1 if without else 2)


@pytest.mark.parametrize("asked", [True, False])
async def test_a_server_that_is_no_primary_any_more_answers_nobody(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """No other Sentinel answers than one that has missed the election. The control does not ask the server itself."""
    if not asked:
        monkeypatch.setattr(primary, "must_be_primary", lambda *_: None)
    async with (
        listening(server("slave", "old")) as [old],
        listening(sentinel(old, epoch=1)) as ports,
        client(ports) as redis,
    ):
        if asked:
            with pytest.raises(OUTAGES, match="is a slave, no primary"):
                await ask(redis, "GET", "x")
        else:
            assert await ask(redis, "GET", "x") == b"old"


@pytest.mark.parametrize("bounded", [True, False])
async def test_a_primary_that_stops_is_left_before_an_ordinary_answer_would_be_late(
    monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """Another one may have been promoted meanwhile. The control: the time of an ordinary answer."""
    monkeypatch.setattr(connection, "ELECTION_S", SOON_S if bounded else NEVER_S)
    async with (
        listening(server("master", "")) as [stopped],
        listening(sentinel(stopped, epoch=1)) as ports,
        client(ports) as redis,
    ):
        if bounded:
            with pytest.raises(OUTAGES):
                await ask(redis, "GET", "x")
        else:
            assert await hangs(ask(redis, "GET", "x"))


def by_turns(say: Say, turn: int) -> Say:
    """It answers at one look alone, and has an error for the others."""
    asked = 0

    def said(command: Sequence[str]) -> Iterable[bytes]:
        nonlocal asked
        asked += command[:2] == ["SENTINEL", "MASTER"]
        return say(command) if asked == turn or command[0] in ENTERING else (b"-ERR busy\r\n",)

    return said


async def faults_seen(*sentinels: Say) -> list[str]:
    """The faults of a whole chain with these Sentinels, as a start of the API finds them. The primary is that of 2."""
    async with contextlib.AsyncExitStack() as stack:
        [replica] = await stack.enter_async_context(listening(server("slave", "", FOLLOWED.format(1))))
        [port] = await stack.enter_async_context(listening(server("master", "", FOLLOWED.format(replica))))
        ports = await stack.enter_async_context(listening(*sentinels))
        redis = connect(RedisSettings(url=f"redis://127.0.0.1:{port}"))
        stack.push_async_callback(redis.aclose)
        return replicas.faults(
            *await replicas.look_well(Store(redis, Keys("ha"), name="t"), RedisSettings(url=url_of(ports)))
        )


@pytest.mark.parametrize("kept", [True, False])
async def test_what_a_sentinel_has_said_at_an_earlier_look_counts(monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    """Where two answer by turns. The control: the last look alone."""
    monkeypatch.setattr(replicas, "TRIES", 2)
    if not kept:
        monkeypatch.setattr(replicas, "zip_longest", lambda new, _: [(each, None) for each in new])
    good = sentinel(2, epoch=2)
    said = ["1 of 3 Sentinels do not answer"]
    assert await faults_seen(by_turns(good, 1), by_turns(good, 2), good) == ([] if kept else said)


@pytest.mark.parametrize("compared", [True, False])
async def test_a_sentinel_that_names_an_earlier_primary_is_a_fault_of_the_chain(
    monkeypatch: pytest.MonkeyPatch, compared: bool
) -> None:
    """The control takes each Sentinel by itself, and finds nothing wrong."""
    if not compared:
        monkeypatch.setattr(replicas, "_earlier", lambda _: [])
    found = await faults_seen(sentinel(1, epoch=1), sentinel(2, epoch=2), sentinel(2, epoch=2))
    assert bool(found) is compared
    assert all(
        each.startswith("Sentinels name different primaries, 127.0.0.1:1 and by a later election 127.0.0.1:2")
        for each in found
    )
