"""Pooled HTTP connections to many backends, with every failure turned into an `InferenceError`."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from prorl_mq.errors import AddressRefused
from prorl_mq.process import tracing
from prorl_mq.process.backend_keys import BackendKeys
from prorl_mq.process.http_connection import BrokenAnswer, Connection, ConnectionDropped, HttpAnswer
from prorl_mq.rules.reach import Reach
from workers.inference.event_stream import EventReader
from workers.inference.protocol import InferenceError

log = logging.getLogger("workers.inference.transport")
JOINED_BYTES: Final = 16 << 10  # a longer body is not copied to stand behind its head
Parts = Sequence[bytes]  # of a request, sent one after the other
Heard = Callable[[bytes], None]  # gets a body as it comes


class Stale(InferenceError):
    """A kept connection dropped with nothing answered: send the call again, as a new one, to the same backend."""


def normalise(address: str) -> str:
    """`host:port`, with or without scheme, trailing slash or `/v1`, as `http://host:port[/prefix]`."""
    text = address if "://" in address else f"http://{address}"
    text = text.rstrip("/").removesuffix("/v1").rstrip("/")
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
        raise ValueError(f"backend address {address!r} is not of the form http://HOST:PORT")
    return text


class HttpTransport:
    """Keeps idle connections per address and uses the newest first. Safe for any number of tasks of one loop."""

    def __init__(
        self,
        *,
        connect_s: float = 5.0,
        answer_s: float = 600.0,
        idle_per_address: int = 128,
        keys: BackendKeys | None = None,
    ) -> None:
        self._keys = keys or BackendKeys()
        self.connect_s = connect_s
        self.answer_s = answer_s
        self._idle_per_address = idle_per_address
        self._idle: dict[str, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._heads: dict[tuple[str, str, str], bytes] = {}
        self._closed = False
        self._reach: dict[str, Reach] = {}  # of tenants' backends, by address

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes every connection; exchanges in progress fail. Idempotent."""
        self._closed = True
        for connection in (*self._busy, *(c for idle in self._idle.values() for c in idle)):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the loop close the sockets of aborted connections

    async def post(
        self,
        address: str,
        path: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        answer_s: float | None = None,
        repeatable: bool = False,
        events: Callable[[bytes], None] | None = None,
    ) -> HttpAnswer:
        """Sends JSON bytes. Raises `InferenceError` for everything that is not an HTTP answer.

        `repeatable`: it does no harm twice, so it is sent again where `Stale` would be raised. `events`: gets the data
        of each event where the answer is a stream of events, as it comes; that answer has no body. What it raises ends
        the call.
        """
        head = self._head("POST", address, path)
        extra = self._authorization(address)
        extra += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        if (trace := tracing.header()) is not None:
            extra += f"traceparent: {trace}\r\n"
        request = [b"%s%scontent-length: %d\r\n\r\n" % (head, extra.encode(), len(body)), body]
        if len(body) < JOINED_BYTES:
            request = [b"".join(request)]
        heard = None if events is None else EventReader(lambda data: events(self._keys.hide(address, data))).feed
        return await self._exchange(address, request, answer_s, repeatable=repeatable, heard=heard)

    async def get(self, address: str, path: str, *, answer_s: float | None = None) -> HttpAnswer:
        """Raises `InferenceError` for everything that is not an HTTP answer."""
        request = [b"%s%s\r\n" % (self._head("GET", address, path), self._authorization(address).encode())]
        return await self._exchange(address, request, answer_s, repeatable=True)

    def give_up(self, address: str, reason: str) -> int:
        """Ends every exchange with a backend that is known to be dead; how many there were."""
        busy = [connection for connection in self._busy if connection.address == address]
        for connection in busy:
            connection.give_up(InferenceError(f"backend {address}: the call was given up: {reason}"))
        return len(busy)

    def judge(self, address: str, reach: Reach | None) -> None:
        """Has each connect to a tenant's backend judged, and none of its words repeated; None: it is the operator's."""
        for each in (address, normalise(address)):
            if reach is None:
                self._reach.pop(each, None)
            else:
                self._reach[each] = reach

    def fixed(self, address: str, error: InferenceError) -> InferenceError:
        """The error as it may be told: without what was sent by an address that is a tenant's."""
        if address not in self._reach or str(error) == error.unquoted:
            return error
        log.warning("%r", str(error))
        return type(error)(error.unquoted)

    def _authorization(self, address: str) -> str:
        """The header with the key of one of the operator's backends; a tenant's gets none, wherever it is."""
        key = None if address in self._reach else self._keys.of(address)
        return "" if key is None else f"authorization: Bearer {key}\r\n"

    def _head(self, method: str, address: str, path: str) -> bytes:
        key = (method, address, path)
        head = self._heads.get(key)
        if head is None:
            url = urlsplit(address)
            kind = "content-type: application/json\r\n" if method == "POST" else ""
            prefix = urlsplit(normalise(address)).path
            lines = f"{method} {prefix}{path} HTTP/1.1\r\nhost: {url.netloc}\r\naccept: application/json\r\n{kind}"
            head = self._heads[key] = lines.encode()
        return head

    async def _exchange(
        self, address: str, request: Parts, answer_s: float | None, *, repeatable: bool, heard: Heard | None = None
    ) -> HttpAnswer:
        """Raises `InferenceError`, also for an answer that asks for another key. No answer repeats the one it got."""
        answer = await self._answered(address, request, answer_s, heard, repeatable=repeatable)
        if answer.status == 401:
            raise InferenceError(
                f"backend {address} answered 401: {self._keys.refused(address, self._reach.get(address))}"
            )
        return answer._replace(body=self._keys.hide(address, answer.body))

    async def _answered(
        self, address: str, request: Parts, answer_s: float | None, heard: Heard | None, *, repeatable: bool
    ) -> HttpAnswer:
        limit_s = self.answer_s if answer_s is None else answer_s
        try:
            async with asyncio.timeout(limit_s):
                try:
                    return await self._send(address, request, heard)
                except Stale:
                    if not repeatable:
                        raise
                    return await self._send(address, request, heard)
        except TimeoutError as error:
            raise InferenceError(f"backend {address}: no complete answer within {limit_s:g} s") from error
        except BrokenAnswer as error:
            words = self._keys.quoted(address, str(error))
            raise InferenceError(f"backend {address}: its answer cannot be read", quoted=words) from error
        except ConnectionDropped as error:
            raise InferenceError(f"backend {address}: {error}") from error

    async def _send(self, address: str, request: Parts, heard: Heard | None) -> HttpAnswer:
        """Uses an idle connection if there is one.

        A server may close an idle connection just as we write to it. If nothing was written, another connection is
        taken. If nothing was answered, the server may still have begun: `Stale` leaves it to the caller, and the
        next request opens a fresh connection. One that was fresh and drops is the backend's failure.
        """
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            try:
                return await self._use(address, connection, request, heard)
            except ConnectionDropped as error:
                if not error.sent:
                    continue
                if error.answered or self._closed:
                    raise
                self._forget_idle(address)
                raise Stale(f"backend {address}: an idle connection dropped as it was used again") from error
        return await self._use_fresh(address, request, heard)

    async def _use_fresh(self, address: str, request: Parts, heard: Heard | None) -> HttpAnswer:
        """One that the server closes before we write says nothing about the request: one more is opened."""
        try:
            return await self._use(address, await self._open(address), request, heard)
        except ConnectionDropped as error:
            if error.sent or self._closed:
                raise
        return await self._use(address, await self._open(address), request, heard)

    def _forget_idle(self, address: str) -> None:
        """Drops the idle connections to an address: they are as old as one that was dropped."""
        for connection in self._idle.pop(address, []):
            connection.abort()

    async def _open(self, address: str) -> Connection:
        if self._closed:
            raise InferenceError(f"backend {address}: the transport is closed; nothing more can be sent")
        try:
            async with asyncio.timeout(self.connect_s):
                return await Connection.open(address, self._reach.get(address))
        except TimeoutError as error:
            raise InferenceError(f"backend {address}: no connection within {self.connect_s:g} s") from error
        except OSError as error:
            raise InferenceError(f"backend {address}: cannot connect", quoted=str(error)) from error
        except AddressRefused as error:
            raise InferenceError(f"backend {address}: {error}") from error

    async def _use(self, address: str, connection: Connection, request: Parts, heard: Heard | None) -> HttpAnswer:
        self._busy.add(connection)
        try:
            answer = await connection.exchange(request, heard)
        finally:
            self._busy.discard(connection)
        if not connection.closed:
            idle = self._idle.setdefault(address, [])
            if self._closed or len(idle) >= self._idle_per_address:
                connection.abort()
            else:
                idle.append(connection)
        return answer
