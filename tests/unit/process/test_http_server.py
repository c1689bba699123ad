"""The small HTTP server answers whatever its handler does."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from prorl_mq.process.http_server import HttpRequest, HttpResponse, HttpServer

pytestmark = pytest.mark.anyio
GOOD = b"GET /good HTTP/1.1\r\nhost: x\r\n\r\n"


async def half() -> AsyncIterator[bytes]:
    yield b"one"
    raise OSError("no space left")


async def handle(request: HttpRequest) -> HttpResponse:
    if request.path == "/events":
        return HttpResponse(events=half())
    if request.path == "/bad":
        raise KeyError("prompt")
    return HttpResponse(body=b"fine")


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    made = HttpServer(handle)
    await made.start()
    yield made
    await made.stop()


async def told(server: HttpServer, *requests: bytes) -> bytes:
    """All that comes back, until the server ends the connection or nothing comes for a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(b"".join(requests))
        said = b""
        async with asyncio.timeout(10):
            while not said.endswith(b"fine") and (part := await reader.read(65536)):
                said += part
        return said
    finally:
        writer.close()


async def test_a_handler_that_raises_is_answered_and_logged_and_the_connection_stays(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        said = await told(server, GOOD.replace(b"good", b"bad"), GOOD)
    assert said.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"GET /bad failed: KeyError: 'prompt'" in said
    assert said.endswith(b"fine")
    assert "GET /bad failed" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("lines", [b"GET\r\n\r\n", b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
                                   b"GET / HTTP/1.1\r\ncontent-length: -5\r\n\r\n"])  # fmt: skip
async def test_what_is_no_request_is_refused_and_ends_the_connection(server: HttpServer, lines: bytes) -> None:
    said = await told(server, lines, GOOD)
    assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"this is no HTTP request" in said
    assert b"fine" not in said


async def test_events_that_fail_end_the_connection(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    """Else the caller would wait for the next one."""
    with caplog.at_level(logging.ERROR):
        try:
            said = await told(server, GOOD.replace(b"good", b"events"))
        except ConnectionError:
            said = b""
    assert not said.endswith(b"0\r\n\r\n")
    assert "the events of GET /events failed" in caplog.text
