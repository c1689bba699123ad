"""HTTP connections with deadlines and owners: a client that does not finish its request gives its place back.

uvicorn has a time-out between requests and none within one, so that a thousand half-open connections take all files of
a process, and nobody else is answered any more. And it takes connections as long as there are files.
"""

import asyncio
import contextlib
import resource
import signal
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

import uvicorn
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

FILES: Final = 65_536  # open at once
LAST_LOOK_S: Final = 0.25  # what has arrived while the event loop was busy is read before a deadline counts
HEAD_BYTES: Final = 65_536
EXTENSION: Final = "prorl.connection"


def raise_file_limit() -> None:
    """Raises the soft limit on open files as far as the hard limit and `FILES` allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_open() -> int:
    """Connections of callers who are known. As many files are left to those who are not, to Redis and to backends."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(2, (FILES if soft == resource.RLIM_INFINITY else soft) // 2)


def most_strangers() -> int:
    """Connections on which nobody has shown who it is."""
    return max(2, most_open() // 2)


def connection_of(scope: Scope) -> "TimedProtocol | None":
    """The connection that a request came on; None where another server carries it."""
    found = scope.get("extensions", {}).get(EXTENSION, {}).get("connection")
    made = found() if isinstance(found, weakref.ref) else None
    return made if isinstance(made, TimedProtocol) else None


def _refusal(status: int, said: bytes) -> bytes:
    about = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    return b"%s%scontent-length: %d\r\n\r\n%s" % (STATUS_LINE[status], about, len(said), said)


LATE: Final = _refusal(408, b"the request did not arrive in time")
TOO_LONG: Final = _refusal(431, b"the headers are longer than %d bytes" % HEAD_BYTES)


STRANGERS: "weakref.WeakKeyDictionary[Any, dict[TimedProtocol, None]]" = weakref.WeakKeyDictionary()  # of each server


class TimedProtocol(HttpToolsProtocol):
    """Hangs up where headers are not complete in `HEAD_S`, or a body comes slower than `SLOWEST`.

    A connection is a stranger's until `belong`. Where there are too many of these, the oldest makes room for the
    newest: who has a token shows it in the moment in which it connects.
    """

    HEAD_S = 5.0  # from the connection's start, or the first byte of a later request
    BODY_S = 10.0  # of a body before its rate counts
    SLOWEST = 16_384  # bytes a second of a body

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._part = ""  # of a request that has begun: head, body
        self._body_since = 0.0
        self._body_bytes = 0
        self._head_bytes = 0
        self._strangers = STRANGERS.setdefault(self.server_state, {})
        self._owner: Hashable = None
        self._give: Callable[[], None] | None = None
        self._lost = False
        self._ending: asyncio.Future[None] | None = None

    def ending(self) -> asyncio.Future[None]:
        """Of the request that it serves: done when the connection ends, and cancelled by who asked."""
        self._ending = self.loop.create_future()
        if self._lost:
            self._ending.set_result(None)
        return self._ending

    def belong(self, owner: Hashable, take: Callable[[], None], give: Callable[[], None]) -> None:
        """Counts it among an owner's in place of the one before, until it ends. Raises what `take` does: it is a
        stranger's then, for it stays open until its answer is read.
        """
        if owner == self._owner or self._lost:
            return
        self._release()  # it is no further connection, so it takes the place that it gives back
        try:
            take()
        except BaseException:
            self._count_as_stranger()
            raise
        self._strangers.pop(self, None)
        self._owner, self._give = owner, give

    def _release(self) -> None:
        """Takes it from its owner."""
        give, self._give, self._owner = self._give, None, None
        if give is not None:
            give()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._count_as_stranger()
        self._wait(self.HEAD_S)

    def _count_as_stranger(self) -> None:
        self._strangers[self] = None
        if len(self._strangers) > most_strangers():
            next(iter(self._strangers)).drop()

    def drop(self) -> None:
        """Hangs up at once."""
        self._strangers.pop(self, None)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter("")
        self._strangers.pop(self, None)
        self._lost = True  # a request of it may begin only now
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)
        self._release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._deadline is None:
            if self._part == "body":
                self._wait(self.BODY_S)
            elif self._part or not self._answering:  # empty lines alone; beside a request they are nothing
                self._wait(self.HEAD_S)
        if self._part == "head":
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(TOO_LONG)

    def on_message_begin(self) -> None:
        self._part, self._head_bytes = "head", 0
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: {"connection": weakref.ref(self)}}

    def on_headers_complete(self) -> None:
        self._enter("body")
        super().on_headers_complete()
        self._body_since, self._body_bytes = self.loop.time(), 0

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._enter("")
        super().on_message_complete()

    def _enter(self, part: str) -> None:
        self._part = part
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _wait(self, within_s: float) -> None:
        self._deadline = self.loop.call_later(within_s, self._look)

    def _look(self) -> None:
        self._deadline = self.loop.call_later(LAST_LOOK_S, self._over)

    def _over(self) -> None:
        """The time for a part of a request is over."""
        self._deadline = None
        if self._part == "body" and self._keeps_up():
            self._wait(self.BODY_S / 2)
        else:
            self._refuse(LATE)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, refusal: bytes) -> None:
        """Hangs up; says why if the next bytes that the client reads answer this request. What waits behind another
        request is not read, and so not refused.
        """
        in_body = self._part == "body" and self._answering and not self.cycle.response_started
        if in_body or (self._part == "head" and not self._answering):
            self.transport.write(refusal)
        self.transport.close()

    def _keeps_up(self) -> bool:
        """True if a body comes fast enough. While it is not read here, its time stands."""
        now = self.loop.time()
        if self.flow.read_paused:
            self._body_since, self._body_bytes = now, 0
        return self._body_bytes >= (now - self._body_since) * self.SLOWEST


class DrainingServer(uvicorn.Server):
    """A server that ends with code 0 where a signal has asked it to, once what is under way was answered."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's own, does not raise the signal again."""
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
