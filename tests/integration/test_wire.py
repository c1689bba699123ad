"""One connection for many calls: each gets its own reply, whatever becomes of the others and of the connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.exceptions import ConnectionError, NoScriptError, ReadOnlyError, ResponseError, TimeoutError

from prorl_mq.store.server.connection import OUTAGES, RedisSettings, ask, ask_many, connect

pytestmark = pytest.mark.anyio


@pytest.fixture
async def wired(settings: RedisSettings) -> AsyncIterator[Any]:
    client = connect(settings, wired=True)
    yield client
    await client.aclose()


async def test_each_of_a_thousand_calls_gets_its_own_reply_over_one_connection(wired: Any) -> None:
    before = await ask(wired, "CLIENT", "LIST")
    found = await asyncio.gather(*(ask(wired, "ECHO", f"{number}") for number in range(1000)))
    assert found == [b"%d" % number for number in range(1000)]
    after = await ask(wired, "CLIENT", "LIST")
    assert len(after.splitlines()) == len(before.splitlines()) + 1


async def test_calls_that_come_at_every_step_of_a_connection_that_is_made_wait_for_that_one(
    wired: Any, settings: RedisSettings
) -> None:
    """One that came between the end of its making and the note of it waited without letting anybody else run."""
    calls: list[asyncio.Task[bytes]] = []
    while not calls or not calls[0].done():
        calls += [asyncio.create_task(ask(wired, "ECHO", f"{len(calls) + more}")) for more in range(3)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*calls) == [b"%d" % number for number in range(len(calls))]
    watching = connect(settings)
    try:
        assert (await ask(watching, "CLIENT", "LIST")).count(b"cmd=echo") == 1
    finally:
        await watching.aclose()


async def test_the_reply_to_a_call_that_was_given_up_goes_to_nobody(wired: Any) -> None:
    calls = [asyncio.create_task(ask(wired, "ECHO", f"{number}")) for number in range(10)]
    await ask(wired, "PING")
    given_up = asyncio.create_task(ask(wired, "ECHO", "given up"))
    await asyncio.sleep(0)
    given_up.cancel()
    assert await ask(wired, "ECHO", "next") == b"next"
    assert [await call for call in calls] == [b"%d" % number for number in range(10)]
    with pytest.raises(asyncio.CancelledError):
        await given_up


async def test_an_error_concerns_its_own_call(wired: Any) -> None:
    await ask(wired, "SET", "text", "a")
    found = await asyncio.gather(
        ask(wired, "LPUSH", "text", "b"), ask(wired, "EVALSHA", "0" * 40, 0), ask(wired, "GET", "text"),
        return_exceptions=True,
    )  # fmt: skip
    assert [type(each) for each in found] == [ResponseError, NoScriptError, bytes]
    with pytest.raises(TypeError):
        await ask(wired, "SET", "text", object())  # type: ignore[arg-type]
    assert await ask(wired, "GET", "text") == b"a"


@pytest.mark.parametrize("at_once", [False, True])
async def test_several_commands_are_answered_in_their_order_or_raise_the_first_error(wired: Any, at_once: bool) -> None:
    found = await ask_many(wired, [("SET", "n", 1), ("INCR", "n"), ("GET", "n")], at_once=at_once)
    assert found == [b"OK", 2, b"2"]
    with pytest.raises(ResponseError, match="wrong kind"):
        await ask_many(wired, [("LPUSH", "n", "x"), ("INCR", "n")], at_once=at_once)
    assert await ask(wired, "GET", "n") == b"3"


async def test_what_needs_time_or_a_connection_of_its_own_holds_nobody_up(wired: Any) -> None:
    blocked = asyncio.create_task(ask(wired, "BZMPOP", 30, 1, "bell", "MIN"))
    assert await ask(wired, "PING") == b"PONG"
    await ask(wired, "ZADD", "bell", 0, "rung")
    assert (await blocked)[0] == b"bell"


async def test_twenty_megabytes_come_back_as_they_went(wired: Any) -> None:
    data = bytes(range(256)) * (20 << 12)
    small = [asyncio.create_task(ask(wired, "ECHO", "small")) for _ in range(3)]
    await ask(wired, "SET", "large", data)
    assert await ask(wired, "GET", "large") == data
    assert [await each for each in small] == [b"small"] * 3


async def test_calls_under_way_fail_when_the_server_hangs_up_and_the_next_ones_connect_again(
    wired: Any, settings: RedisSettings
) -> None:
    alone = connect(settings, connections=1, wired=True)
    try:
        number = await ask(alone, "CLIENT", "ID")
        blocked = asyncio.create_task(ask(alone, "BZMPOP", 30, 1, "bell", "MIN"))
        behind = asyncio.create_task(ask(alone, "PING"))
        await asyncio.sleep(0)
        while b"cmd=bzmpop" not in await ask(wired, "CLIENT", "LIST", "ID", number):
            await asyncio.sleep(0.01)
        await ask(wired, "CLIENT", "KILL", "ID", number)
        assert [type(each) for each in await asyncio.gather(blocked, behind, return_exceptions=True)] == [
            ConnectionError, ConnectionError,
        ]  # fmt: skip
        assert await ask(alone, "PING") == b"PONG"
    finally:
        await alone.aclose()


@contextlib.asynccontextmanager
async def saying(path: Path, *answers: bytes) -> AsyncIterator[list[int]]:
    """A server of which each connection has the next of these answers to its first command; it counts them."""
    served: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(served)
        served.append(number)
        with contextlib.suppress(ConnectionError, OSError):
            while data := await reader.read(1 << 16):
                writer.write(b"+OK\r\n" if b"CLIENT" in data else answers[min(number, len(answers) - 1)])
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield served


@pytest.fixture
def place(tmp_path: Path, settings: RedisSettings) -> RedisSettings:
    return msgspec.structs.replace(settings, url=f"unix://{tmp_path}/s", answer_s=0.3)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", TimeoutError),
        (b"-READONLY You can't write against a read only replica.\r\n", ReadOnlyError),
        (b"nonsense\r\n", ConnectionError),
        (b"+ONE\r\n+TOO MANY\r\n", None),
    ],
    ids=["silence", "another role", "no reply", "a reply that nobody has asked for"],
)
async def test_after_a_connection_that_is_no_good_the_next_call_makes_another(
    place: RedisSettings, tmp_path: Path, answer: bytes, error: type[Exception] | None
) -> None:
    async with saying(tmp_path / "s", answer, b"+PONG\r\n") as served:
        client = connect(place, wired=True)
        try:
            if error is None:
                assert await ask(client, "PING") == b"ONE"
            else:
                with pytest.raises(error):
                    await ask(client, "PING")
            await asyncio.sleep(0)
            assert await ask(client, "PING") == b"PONG"
            assert len(served) == 2
        finally:
            await client.aclose()


async def test_who_waits_for_a_connection_hears_that_the_client_was_closed(
    place: RedisSettings, tmp_path: Path
) -> None:
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(serve, tmp_path / "s"):
        client = connect(msgspec.structs.replace(place, password="secret"), wired=True)
        call = asyncio.create_task(ask(client, "PING"))
        await asked.wait()
        await client.aclose()
        with pytest.raises(OUTAGES):
            await call


@pytest.mark.parametrize(
    ("wired", "over_it"),
    [("short", ["EVALSHA", "EXISTS"]), (True, ["GET", "EVALSHA", "EVALSHA", "HGET", "XRANGE", "EXISTS"])],
)
async def test_what_is_long_or_may_be_answered_at_length_is_not_in_front_of_what_is_short(
    settings: RedisSettings, wired: Any, over_it: list[str]
) -> None:
    """The API's client is of short calls. The control is a client of all calls, where the long ones are in front."""
    client: Any = connect(settings, wired=wired)
    try:
        sha = await ask(client, "SCRIPT", "LOAD", "return #ARGV[1]")
        await ask(client, "HGET", "hash", "field")  # makes the wire
        sent, send = list[str](), client._wire.send

        def noted(command: tuple[Any, ...], within_s: float) -> Any:
            sent.append(command[0])
            return send(command, within_s)

        client._wire.send = noted
        assert await ask(client, "GET", "text") is None
        assert await ask(client, "EVALSHA", sha, 0, b"x" * (1 << 17)) == 1 << 17
        assert await ask(client, "EVALSHA", sha, 0, b"x") == 1
        assert await ask_many(client, [("HGET", "hash", "field"), ("XRANGE", "stream", "-", "+")]) == [None, []]
        assert await ask(client, "EXISTS", "text") == 0
        assert sent == over_it
    finally:
        await client.aclose()
