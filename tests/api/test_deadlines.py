"""Requests that do not arrive: their connections end, and everybody else is answered meanwhile.

The control is uvicorn's own protocol, on which they stay.
"""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from prorl_mq.process import connections
from prorl_mq.process.connections import TimedProtocol, raise_file_limit
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started

pytestmark = pytest.mark.anyio
HALF_OPEN = 1_000
BODY = b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"


class Impatient(TimedProtocol):
    HEAD_S = 0.3
    BODY_S = 0.3


class Endpoint:
    """Answers at once, or when the body is there, or when the test says so."""

    def __init__(self) -> None:
        self.polled, self.release = asyncio.Event(), asyncio.Event()
        self.left = 0
        self.taken: list[int] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response = PlainTextResponse(scope["path"])
        if scope["path"] == "/body":
            try:
                answer = PlainTextResponse(str(len(await Request(scope, receive).body())))
            except ClientDisconnect:
                self.left += 1
        elif scope["path"] in {"/taken", "/late"}:
            connection = connections.connection_of(scope)
            while scope["path"] == "/late" and (await receive())["type"] != "http.disconnect":
                pass
            assert connection is not None
            connection.belong("ann", lambda: self.taken.append(1), lambda: self.taken.append(-1))
            self.polled.set()
        elif scope["path"] == "/bob":
            connection = connections.connection_of(scope)
            assert connection is not None
            with contextlib.suppress(ValueError):
                connection.belong("bob", self._refuse, lambda: None)
        elif scope["path"] == "/poll":
            self.polled.set()
            await self.release.wait()
        await answer(scope, receive, send)

    def _refuse(self) -> None:
        raise ValueError


@contextlib.asynccontextmanager
async def serving(endpoint: Endpoint, protocol: type[HttpToolsProtocol]) -> AsyncIterator[int]:
    config = uvicorn.Config(endpoint, port=0, http=protocol, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(20):
        while not server.started:
            await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


@pytest.fixture
async def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
async def port(endpoint: Endpoint) -> AsyncIterator[int]:
    async with serving(endpoint, Impatient) as each:
        yield each


@pytest.fixture
async def patient_port(endpoint: Endpoint) -> AsyncIterator[int]:
    """Of uvicorn's own protocol."""
    async with serving(endpoint, HttpToolsProtocol) as each:
        yield each


async def opened(port: int, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
    return reader, writer


async def told(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    """All that comes until the server hangs up."""
    reader, writer = connection
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


BEGUN = {
    "nothing": (b"", b""),
    "a part of the first line": (b"GET / HT", b"408"),
    "headers without an end": (b"GET / HTTP/1.1\r\nHost: a\r\nX-", b"408"),
    "a body without an end": (BODY + b"x" * 99, b"408"),
    "a body of chunks without an end": (b"POST /body HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", b"408"),
    "empty lines": (b"\r\n\r\n", b""),
    "a second request without an end": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nX-", b"408"),
}


@pytest.mark.parametrize("begun", BEGUN)
async def test_a_request_that_does_not_end_gives_its_connection_back(
    port: int, patient_port: int, endpoint: Endpoint, begun: str
) -> None:
    sent, status = BEGUN[begun]
    control = await opened(patient_port, sent)
    answers = (await told(await opened(port, sent))).split(b"HTTP/1.1 ")[1:]
    assert [each[:3] for each in answers] == [b"200"] * ("second" in begun) + [status] * bool(status)
    assert endpoint.left == ("body" in begun)
    reader, writer = control
    assert not reader.at_eof(), "uvicorn's own protocol waits"
    writer.close()


async def test_one_that_drips_has_no_more_time(port: int) -> None:
    """Slowloris: a byte now and then."""
    reader, writer = await opened(port, b"GET / HTTP/1.1\r\n")
    answer = asyncio.create_task(reader.read())
    async with asyncio.timeout(60):
        while not answer.done():
            writer.write(b"X")
            await asyncio.sleep(0.05)  # its pace is the attack
    writer.close()
    assert answer.exception() is not None or (await answer).startswith(b"HTTP/1.1 408")


async def test_a_body_that_comes_fast_enough_may_take_long(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Impatient, "SLOWEST", 1)
    reader, writer = await opened(port, BODY)
    for _ in range(10):
        writer.write(b"x" * 10)
        await asyncio.sleep(0.1)  # three times the time that a body has before its rate counts
    assert (await reader.readuntil(b"100"))[:15] == b"HTTP/1.1 200 OK"
    writer.close()


async def test_a_request_that_is_answered_late_is_not_hurried(port: int, endpoint: Endpoint) -> None:
    """Long polls and event streams; some clients send an empty line behind a request."""
    reader, writer = await opened(port, b"GET /poll HTTP/1.1\r\nHost: a\r\n\r\n")
    await endpoint.polled.wait()
    writer.write(b"\r\n")
    assert b"408" in await told(await opened(port, b"GET ")), "a deadline has passed meanwhile"
    endpoint.release.set()
    assert (await reader.readuntil(b"/poll"))[:15] == b"HTTP/1.1 200 OK"
    writer.close()


BROKEN = [
    b"\x00\xff\x16\x03\x01" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /body HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST /body HTTP/1.1\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /body HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n0\r\n\r\n",
    b"POST /body HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc",
    b"POST /body HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;" + b"x" * 200_000 + b"\r\nab",
    b"POST /body HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nab", b"GET / HTTP/1.1\r\n a\r\n\r\n" + b"\r" * 1_000,
]  # fmt: skip


@pytest.mark.parametrize("sent", BROKEN, ids=range(len(BROKEN)))
async def test_what_is_no_request_is_refused_and_hurts_nobody(port: int, sent: bytes) -> None:
    answer = await told(await opened(port, sent))
    assert b" 500 " not in answer
    reader, writer = await opened(port, b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await reader.readuntil(b"/next"))[:15] == b"HTTP/1.1 200 OK"
    writer.close()


async def test_headers_have_a_length(port: int, patient_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Impatient, "HEAD_S", 600)
    sent = b"GET / HTTP/1.1\r\nX-A: " + b"x" * 16 * connections.HEAD_BYTES
    answer = await told(await opened(port, sent))  # what was sent and not read may cost the reader the answer
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431")
    for each, header in ((port, b"x" * 1024), (patient_port, b"x" * 16 * connections.HEAD_BYTES)):
        reader, writer = await opened(each, b"GET / HTTP/1.1\r\nX-A: " + header + b"\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()


FEW_FILES = ("sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh")


async def test_a_thousand_half_open_connections_stop_nobody(settings: RedisSettings) -> None:
    """More than the process may have by its soft limit at first, all while others are answered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4 * HALF_OPEN:
        pytest.skip(f"no more than {hard} files may be open here")
    try:
        async with started(settings, by=FEW_FILES) as (_, address):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * HALF_OPEN), hard))
            port = int(address.rpartition(":")[2])
            async with contextlib.AsyncExitStack() as stack:
                for number in range(HALF_OPEN):
                    _, writer = await opened(port, b"GET /healthz HTTP/1.1\r\nX-" if number % 2 else b"")
                    stack.callback(writer.close)
                async with asyncio.timeout(30):
                    answer = await told(
                        await opened(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    )
        assert b'{"status":"ok"}' in answer
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_is_raised_and_never_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    for limits, expected in (((256, 4_096), [(4_096, 4_096)]), ((256, 1 << 20), [(65_536, 1 << 20)]),
                             ((1 << 18, 1 << 20), []), ((256, resource.RLIM_INFINITY), [(65_536, -1)]),
                             ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), [])):  # fmt: skip
        made: list[Any] = []
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        monkeypatch.setattr(resource, "setrlimit", lambda _, wanted, made=made: made.append(wanted))
        raise_file_limit()
        assert made == expected


def test_half_of_the_files_are_for_connections_of_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a limit has -1 of them, of which half would be none."""
    for soft, expected in ((resource.RLIM_INFINITY, connections.FILES // 2), (1_000, 500), (3, 2)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, resource.RLIM_INFINITY))
        assert connections.most_open() == expected


@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "control"])
async def test_a_connection_that_another_owner_may_not_have_is_a_strangers_again(
    port: int, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """It has given its place back, and stays open for as long as its client leaves the answer unread."""
    if not bounded:
        monkeypatch.setattr(TimedProtocol, "_count_as_stranger", lambda _: None)
    monkeypatch.setattr(connections, "most_strangers", lambda: 2)
    moved = []
    for number in range(3):
        reader, writer = await opened(port, b"GET /taken HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"/taken")
        writer.write(b"GET /bob HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"/bob")
        assert endpoint.taken == [1, -1] * (number + 1)
        moved.append((reader, writer))
    first = asyncio.ensure_future(moved[0][0].read())
    done, _ = await asyncio.wait({first}, timeout=20 if bounded else 0.2)
    assert bool(done) is bounded
    first.cancel()
    for _, writer in moved:
        writer.close()


@pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "control"])
async def test_the_oldest_of_too_many_strangers_makes_room(
    port: int, monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    monkeypatch.setattr(connections, "most_strangers", lambda: 4 if bounded else 1_000)
    monkeypatch.setattr(Impatient, "HEAD_S", 60.0)
    first = await opened(port, b"GET / HT")
    others = [await opened(port, b"GET / HT") for _ in range(4)]
    reader, writer = await opened(port, b"GET /own HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert b"/own" in await told((reader, writer))
    done, _ = await asyncio.wait({asyncio.ensure_future(first[0].read())}, timeout=20 if bounded else 0.2)
    assert bool(done) is bounded
    for _, each in (first, *others):
        each.close()


@pytest.mark.parametrize(("path", "taken"), [("taken", [1, -1]), ("late", [])])
async def test_a_connection_that_has_ended_holds_no_place(
    port: int, endpoint: Endpoint, path: str, taken: list[int]
) -> None:
    """A request may begin when its client has gone: nothing would give its place back."""
    reader, writer = await opened(port, b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n" % path.encode())
    if path == "taken":
        await reader.readuntil(b"/taken")
    writer.close()
    async with asyncio.timeout(20):
        await endpoint.polled.wait()
        while endpoint.taken != taken:
            await asyncio.sleep(0.01)
