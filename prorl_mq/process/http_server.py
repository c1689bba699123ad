"""A small HTTP/1.1 server on asyncio alone.

A handler runs in a task of its own and is cancelled when the client goes away, as in a real inference server.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple, cast

log = logging.getLogger(__name__)

_REASONS = {
    200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    500: "Internal Server Error",
}  # fmt: skip


class HttpRequest(NamedTuple):
    """One request; header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


class HttpResponse(NamedTuple):
    """One answer. `cut_after` drops the connection after so many bytes of it; 0 sends nothing at all."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    close: bool = False
    cut_after: int | None = None
    drip_s: float = 0.0  # between two bytes
    events: AsyncIterator[bytes] | None = None  # server-sent, in the body's place; `StreamCut` drops the connection


class StreamCut(Exception):
    """The connection is to drop within a stream of events."""


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServer:
    """Listens on loopback. `stop` drops every connection at once, as a killed process would; `start` may follow."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections: set[_Connection] = set()
        self.accepted = 0
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, port: int = 0) -> None:
        """Port 0 takes the port of the last start, or a free one."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", port or self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._server = server

    async def stop(self) -> None:
        """Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        tasks = [connection.task for connection in self.connections if connection.task is not None]
        for connection in tuple(self.connections):
            connection.drop()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()

    def drop_idle(self) -> int:
        """Closes the connections on which no request runs, as a keep-alive limit does. Returns how many."""
        idle = [connection for connection in self.connections if connection.task is None]
        for connection in idle:
            connection.drop()
        return len(idle)


class _Connection(asyncio.Protocol):
    """One client. Requests are answered in turn."""

    def __init__(self, server: HttpServer) -> None:
        self.task: asyncio.Task[None] | None = None
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self.task is not None:
            self.task.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has its methods and is none of its kind
        self._server.connections.add(self)
        self._server.accepted += 1

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the name is the base class's
        self._server.connections.discard(self)
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self.task is None:
            self._next()

    def _next(self) -> None:
        try:
            request = self._take()
        except ValueError as error:  # nobody knows where the next one would begin
            self._data.clear()
            self._write(_failure(400, f"this is no HTTP request: {error}")._replace(close=True))
            return
        if request is not None:
            self.task = asyncio.get_running_loop().create_task(self._serve(request))

    def _take(self) -> HttpRequest | None:
        """The first complete request in the buffer, taken out of it."""
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = bytes(self._data[:end]).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if length < 0:
            raise ValueError(f"content-length is {length}")
        if len(self._data) < end + 4 + length:
            return None
        body = bytes(self._data[end + 4 : end + 4 + length])
        del self._data[: end + 4 + length]
        method, target, _ = first.split(" ", 2)
        path, _, query = target.partition("?")
        return HttpRequest(method, path, query, headers, body)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        """The handler's answer; where it raises, 500 with the error's words, and the log has the traceback."""
        try:
            return await self._server.handler(request)
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            said = f"{request.method} {request.path} failed: {type(error).__name__}: {error}; the server's log has more"
            return _failure(500, said)

    async def _serve(self, request: HttpRequest) -> None:
        response = await self._answer(request)
        if response.events is not None:
            await self._send_events(request, response.events)
            return
        if not response.drip_s:
            self.task = None
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wire = _wire(response)
        if response.cut_after is not None:
            if response.cut_after:
                transport.write(wire[: response.cut_after])
                transport.close()
            else:
                transport.abort()
            return
        if response.drip_s:
            for place in range(len(wire) - 1):
                transport.write(wire[place : place + 1])
                await asyncio.sleep(response.drip_s)
            self.task = None
            wire = wire[-1:]
        transport.write(wire)
        if response.close:
            transport.close()
        else:
            self._next()

    def _write(self, response: HttpResponse) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_wire(response))
            if response.close:
                self._transport.close()

    async def _send_events(self, request: HttpRequest, events: AsyncIterator[bytes]) -> None:
        transport = self._transport
        assert transport is not None
        transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            async for event in events:
                data = b"data: %s\n\n" % event
                transport.write(b"%x\r\n%s\r\n" % (len(data), data))
        except StreamCut:
            transport.abort()
            return
        except Exception:  # its status is sent: only the missing end can tell the caller
            log.exception("the events of %s %s failed", request.method, request.path)
            transport.abort()
            return
        self.task = None
        transport.write(b"0\r\n\r\n")
        self._next()


def _wire(response: HttpResponse) -> bytes:
    close = "connection: close\r\n" if response.close else ""
    head = (
        f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Status')}\r\n"
        f"content-type: {response.content_type}\r\ncontent-length: {len(response.body)}\r\n{close}\r\n"
    )
    return head.encode() + response.body


def _failure(status: int, message: str) -> HttpResponse:
    return HttpResponse(status, json.dumps({"error": {"message": message}}).encode())
