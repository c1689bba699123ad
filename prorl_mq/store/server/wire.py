"""Many calls at a time over one connection: what is asked in one turn of the event loop travels in one write.

redis-py makes the connection, with its TLS, its credentials and the address that a rendezvous names. From then on the
socket is ours: a command of that client costs several times what the server needs to answer it. Replies come in the
order of the commands. A command that blocks would hold up all behind it: those stay on connections of their own.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis
from redis._parsers.base import BaseParser
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, InvalidResponse, TimeoutError

Command = tuple[Any, ...]
Waiting = tuple["asyncio.Future[Any]", float]  # the reply, and by when it must have come
NOTHING: Final = object()  # there is no whole reply yet
LONG_BYTES: Final = 64 << 10  # of one part of a command: a longer one takes a connection of its own
SHORT: Final = frozenset({
    "EVALSHA", "EXISTS", "HEXISTS", "HGET", "HLEN", "HMGET", "INFO", "PING", "PTTL", "SCARD", "SISMEMBER", "STRLEN",
    "TIME", "TYPE", "XLEN", "ZCARD", "ZCOUNT", "ZRANK", "ZSCORE",
})  # fmt: skip


class Wire(asyncio.Protocol):
    """One connection. `passing` tells which errors mean that its server is the wrong one, and `left` whether it has
    become that: it takes no more commands.
    """

    def __init__(
        self, writer: asyncio.StreamWriter, passing: Callable[[Exception], bool], left: Callable[[], bool]
    ) -> None:
        self.open = True  # it takes commands
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._passing = passing
        self._replies = hiredis.Reader(
            protocolError=InvalidResponse, replyError=BaseParser.parse_error, notEnoughData=NOTHING
        )
        self._waiting: deque[Waiting] = deque()
        self._unsent: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf
        self._writer = writer  # kept: some versions of Python close the transport of one that nobody holds
        self._transport = writer.transport
        self._transport.set_protocol(self)

    def takes(self) -> bool:
        """True while it takes commands, in the event loop that it was made in."""
        if self._loop is not asyncio.get_running_loop():
            return False
        if self.open and self._left():
            self.open = False
            if not self._waiting:
                self.close()
        return self.open

    def send(self, command: Command, within_s: float) -> "asyncio.Future[Any]":
        """The reply to come. It raises what Redis says, or that the connection is lost.

        Raises `ConnectionError` where it takes no more commands, `TypeError` for a part that is no text or number.
        """
        if not self.open:
            raise ConnectionError("the connection to Redis is closed")
        packed = hiredis.pack_command(command)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(packed)
        reply, due = self._loop.create_future(), self._loop.time() + within_s
        self._waiting.append((reply, due))
        if due < self._looks_at:
            self._look_at(due)
        return reply

    def close(self, why: str = "the connection to Redis is closed") -> None:
        """Ends it now: calls without an answer fail. Idempotent."""
        self._end(ConnectionError, why)
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            self._replies.feed(data)
            while (reply := self._replies.gets()) is not NOTHING:
                self._answer(reply)
        except InvalidResponse as error:
            self.close(f"Redis has sent what is no reply: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionError, f"the connection to Redis is lost: {exc or 'the server closed it'}")

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._waiting:
            self._transport.write(b"".join(unsent))

    def _answer(self, reply: Any) -> None:
        if not self._waiting:
            raise InvalidResponse("nobody has asked")
        waiting, _ = self._waiting.popleft()
        is_error = isinstance(reply, Exception)
        if not waiting.done():
            waiting.set_exception(reply) if is_error else waiting.set_result(reply)
        if is_error and self._passing(reply):
            self.open = False
        if not self.open and not self._waiting:
            self.close()

    def _look_at(self, due: float) -> None:
        """One timer for all: it comes when the first reply is due, and then for those behind it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._looks_at = self._loop.call_at(due, self._look), due

    def _look(self) -> None:
        self._timer, self._looks_at = None, math.inf
        first = min((due for _, due in self._waiting), default=math.inf)
        if first > self._loop.time():
            if first < math.inf:
                self._look_at(first)
            return
        self._end(TimeoutError, "Redis has not answered in time")
        self._transport.abort()

    def _end(self, kind: type[Exception], why: str) -> None:
        self.open = False
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            waiting, _ = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(kind(why))


class WiredRedis(Redis):
    """redis-py's client with the calls that do not block on one `Wire`. With a single connection blocking ones too: who
    has such a client sends one command after the other.
    """

    def __init__(
        self,
        pool: BlockingConnectionPool,
        *,
        passing: Callable[[Exception], bool],
        blocks: Callable[..., float | None],
        answer_s: float,
        short: bool = False,
    ) -> None:
        """`blocks`: seconds within which a command that blocks must be answered; None for one that does not, which has
        `answer_s`. `short`: a command whose reply may be long (not `SHORT`), or that is long itself, has a connection
        of its own, so that one caller's payloads hold up no other's questions.
        """
        super().__init__(connection_pool=pool, retry=Retry(NoBackoff(), 0))
        self._short = short
        self._passing, self._blocks, self._answer_s = passing, blocks, answer_s
        self._alone = pool.max_connections == 1
        self._wire: Wire | None = None
        self._making: asyncio.Task[Wire] | None = None

    async def execute_command(self, *command: Any, **options: Any) -> Any:
        within_s = self._blocks(*command)
        if options or not (within_s is None or self._alone) or not self.shares(command):
            return await super().execute_command(*command, **options)  # type: ignore[no-untyped-call]
        wire = self._wire
        if wire is None or not wire.takes():
            wire = await self._connected()
        return await wire.send(command, within_s or self._answer_s)

    def shares(self, command: Sequence[Any]) -> bool:
        """True if a command that does not block may go over the shared connection."""
        if not self._short:
            return True
        texts = (part for part in command if isinstance(part, bytes | str))
        return command[0] in SHORT and max(map(len, texts)) <= LONG_BYTES

    async def many(self, commands: Sequence[Command], *, at_once: bool) -> list[Any]:
        """The replies to several commands, between which nothing else happens if `at_once`. Raises the first error."""
        wire = await self._connected()
        if at_once:
            commands = (("MULTI",), *commands, ("EXEC",))
        waiting = [wire.send(tuple(command), self._answer_s) for command in commands]
        replies: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
        _raise_first(replies)
        if at_once:
            replies = replies[-1]
            _raise_first(replies)
        return replies

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        if self._making is not None:
            self._making.cancel()
        if self._wire is not None:
            self._wire.close()
        await super().aclose(close_connection_pool)

    async def _connected(self) -> Wire:
        """The wire, made where there is none. All who wait for a new one wait for the same."""
        if self._wire is not None and self._wire.takes():
            return self._wire
        if self._making is None:
            self._making = asyncio.create_task(self._make())
            self._making.add_done_callback(self._made)
        making = self._making
        try:
            return await asyncio.shield(making)  # should it be lost by now, its `send` says so
        except asyncio.CancelledError:
            if making.cancelled():  # by `aclose`: who waits is not cancelled itself
                raise ConnectionError("the client is closed") from None
            raise

    def _made(self, making: "asyncio.Task[Wire]") -> None:
        self._making = None
        if not making.cancelled() and making.exception() is None:
            self._wire = making.result()

    async def _make(self) -> Wire:
        made: Any = self.connection_pool.make_connection()
        await made.connect()
        writer, made._writer, made._reader = made._writer, None, None  # noqa: SLF001 - from now on not that client's
        return Wire(writer, self._passing, made.left)


def _raise_first(replies: Sequence[Any]) -> None:
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
