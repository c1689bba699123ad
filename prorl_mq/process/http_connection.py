"""One keep-alive HTTP/1.1 connection, to a backend or from a trainer to the service.

A general HTTP client costs more CPU per call than the rest of our path together, and hides which part of an exchange
was reached when a connection drops. This one knows: it tells a drop before the first answered byte from a drop within
an answer, which decides whether sending again is safe. One exchange at a time, no redirects, no cookies.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from prorl_mq.rules.reach import Reach, reached
from prorl_mq.schema import addresses

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 256 << 20
MAX_ERROR_BYTES = 64 << 10  # read of an answer that is no success; what says why comes first
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}(?=[\t ]*(?:;|\Z))")  # a negative one would be read again without end


class HttpAnswer(NamedTuple):
    """Status and body of one exchange, and what the header Retry-After says."""

    status: int
    body: bytes
    retry_after: str = ""


class ConnectionDropped(Exception):
    """The connection ended before the answer was complete.

    `sent`: something of the request may have reached the server; `answered`: something of its answer has come back.
    """

    def __init__(self, message: str, *, sent: bool = True, answered: bool) -> None:
        super().__init__(message)
        self.sent = sent
        self.answered = answered


class BrokenAnswer(Exception):
    """Raised for an answer that is not HTTP/1.1, or too large."""


class _Head(NamedTuple):
    status: int
    body_at: int
    length: int | None  # None: until the connection ends
    chunked: bool
    keep: bool
    events: bool  # a stream of events
    retry_after: str


def _parse_head(data: bytearray, end: int) -> _Head:
    """Reads status line and headers; `end` is the place of the empty line."""
    lines = bytes(data[:end]).split(b"\r\n")
    parts = lines[0].split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
        raise BrokenAnswer(f"no HTTP/1.1 status line: {lines[0][:80]!r}")
    status, length, chunked, keep = int(parts[1]), None, False, parts[0] == b"HTTP/1.1"
    events, retry_after = False, ""
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-length":
                if not value.strip().isdigit():
                    raise BrokenAnswer(f"content-length is {value[:80]!r}")
                length = int(value)
            case b"transfer-encoding":
                chunked = b"chunked" in value.lower()
            case b"connection":
                keep = b"close" not in value.lower()
            case b"content-type":
                events = b"text/event-stream" in value.lower()
            case b"retry-after":
                retry_after = value.strip().decode("latin-1")
            case _:
                pass
    if status in {204, 304}:
        length, chunked = 0, False
    keep = keep and (chunked or length is not None)
    return _Head(status, end + 4, None if chunked else length, chunked, keep, events, retry_after)


def _take_chunks(data: bytearray) -> tuple[bytes, bool]:
    """Removes the chunks that are complete from the front: their content, and whether the last one was among them.
    Trailers are skipped.
    """
    pieces: list[bytes] = []
    at, last = 0, False
    while not last and (line_end := data.find(b"\r\n", at)) >= 0:
        if not (told := _CHUNK_SIZE.match(data, at, line_end)):
            raise BrokenAnswer(f"chunk size is {bytes(data[at:line_end])[:80]!r}")
        size = int(told[0], 16)
        start = line_end + 2
        if size == 0:
            end = data.find(b"\r\n\r\n", line_end)
            last, at = end >= 0, end + 4 if end >= 0 else at
            break
        if len(data) < start + size + 2:
            break
        pieces.append(bytes(data[start : start + size]))
        at = start + size + 2
    del data[:at]
    return b"".join(pieces), last


class Connection(asyncio.Protocol):
    """Sends one request at a time and hands back its answer. Not usable any more once `closed`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._head: _Head | None = None
        self._body: list[bytes] = []  # of an answer in chunks
        self._got = 0  # bytes of the body, where they are passed on
        self._heard: Callable[[bytes], None] | None = None
        self._waiter: asyncio.Future[HttpAnswer] | None = None

    @classmethod
    async def open(cls, address: str, reach: Reach | None = None, *, uds: str | None = None) -> "Connection":
        """Connects to `http://host:port` or `https://...`, or to a Unix socket in its place. Raises `OSError`.

        With a reach, to an address behind the host, all of which were judged just now: `AddressRefused`.
        """
        url = urlsplit(address)
        assert url.hostname is not None
        secure = url.scheme == "https"
        port = url.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        if uds is not None:
            _, connection = await loop.create_unix_connection(lambda: cls(address), uds)
            return connection
        context = ssl.create_default_context() if secure else None
        if reach is None:
            _, connection = await loop.create_connection(lambda: cls(address), url.hostname, port, ssl=context)
            return connection
        failure = OSError("no address")
        for found in await reached(addresses.parse(address), reach):
            name = url.hostname if secure else None
            try:
                _, connection = await loop.create_connection(
                    lambda: cls(address), found, port, ssl=context, server_hostname=name
                )
            except OSError as error:
                failure = error
            else:
                return connection
        raise failure

    async def exchange(self, request: Sequence[bytes], heard: Callable[[bytes], None] | None = None) -> HttpAnswer:
        """One request, in parts, one answer. Cancelling closes the connection, which is how a server learns to stop.

        The body of a stream of events is passed to `heard` as it comes, and is not in the answer. Raises
        `ConnectionDropped`, `BrokenAnswer`, and what `heard` raises.
        """
        transport = self._transport
        if self.closed or transport is None or transport.is_closing():
            self.abort()
            raise ConnectionDropped("the server closed the connection before it was used", sent=False, answered=False)
        self._waiter, self._heard = asyncio.get_running_loop().create_future(), heard
        transport.writelines(request)
        try:
            return await self._waiter
        except BaseException:
            self.abort()
            raise
        finally:
            self._waiter = None

    def abort(self) -> None:
        """Closes at once, without sending what is still buffered."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def give_up(self, error: Exception) -> None:
        """Ends the exchange with an error of the caller's."""
        self._fail(error)
        self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has its methods and is none of its kind

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._waiter is None or self._waiter.done():
            self.abort()  # bytes that nobody asked for
            return
        try:
            self._advance()
        except Exception as error:  # a broken answer, or what `heard` finds wrong
            self.give_up(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        head = self._head
        if head is not None and head.length is None and not head.chunked and exc is None:
            self._deliver(b"" if self._streams(head) else bytes(self._data[head.body_at :]))
            return
        reason = f": {exc}" if exc is not None else ""
        if self._data or head is not None:
            self._fail(ConnectionDropped(f"the connection dropped within the answer{reason}", answered=True))
        else:
            self._fail(ConnectionDropped(f"the connection dropped before an answer{reason}", answered=False))

    def _advance(self) -> None:
        """Delivers the answer if all of it has come."""
        if len(self._data) > MAX_BODY_BYTES:
            raise BrokenAnswer(f"the answer exceeds {MAX_BODY_BYTES} bytes")
        if self._head is None:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if len(self._data) > MAX_HEAD_BYTES:
                    raise BrokenAnswer(f"the answer's headers exceed {MAX_HEAD_BYTES} bytes")
                return
            self._head = _parse_head(self._data, end)
            if self._head.status < 200:  # an interim answer; the real one follows
                del self._data[: end + 4]
                self._head = None
                self._advance()
                return
        self._read_body(self._head)

    def _read_body(self, head: _Head) -> None:
        if self._streams(head):
            self._pass_on(head)
        elif head.status // 100 != 2 and len(self._data) - head.body_at > MAX_ERROR_BYTES:
            self._deliver(bytes(memoryview(self._data)[head.body_at : head.body_at + MAX_ERROR_BYTES]))
            self.abort()
        elif head.chunked:
            body = self._chunks(head)
            if body is not None:
                self._deliver(body)
        elif head.length is not None and len(self._data) >= head.body_at + head.length:
            self._deliver(bytes(memoryview(self._data)[head.body_at : head.body_at + head.length]))

    def _streams(self, head: _Head) -> bool:
        return head.events and head.status == 200 and self._heard is not None

    def _chunks(self, head: _Head) -> bytes | None:
        """The joined chunks of a body, or None while some are missing."""
        self._strip(head)
        content, last = _take_chunks(self._data)
        self._body.append(content)
        self._got += len(content)
        if self._got > MAX_BODY_BYTES:
            raise BrokenAnswer(f"the answer exceeds {MAX_BODY_BYTES} bytes")
        return b"".join(self._body) if last else None

    def _pass_on(self, head: _Head) -> None:
        """Passes on what has come of a stream of events."""
        assert self._heard is not None
        self._strip(head)
        last = False
        if head.chunked:
            content, last = _take_chunks(self._data)
        else:
            content = bytes(self._data)
            self._data.clear()
        self._got += len(content)
        if self._got > MAX_BODY_BYTES:
            raise BrokenAnswer(f"the answer exceeds {MAX_BODY_BYTES} bytes")
        if content:
            self._heard(content)
        if last or (head.length is not None and self._got >= head.length):
            self._deliver(b"")

    def _strip(self, head: _Head) -> None:
        """Removes the head from what has come, once."""
        if head.body_at:
            del self._data[: head.body_at]
            self._head = head._replace(body_at=0)

    def _deliver(self, body: bytes) -> None:
        head, waiter = self._head, self._waiter
        assert head is not None
        self._head = None
        self._data = bytearray()
        self._body, self._got, self._heard = [], 0, None
        if not head.keep:
            self.abort()
        if waiter is not None and not waiter.done():
            waiter.set_result(HttpAnswer(head.status, body, head.retry_after))

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
