"""The core of the store: what every verb and every read is sent through.

Every verb may be sent twice; a repeat answers `already`. So each call is repeated through an outage of Redis
(`connection.patiently`) and the caller sees either an answer or `RedisUnavailable`.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum, auto
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from prorl_mq.clock import monotonic
from prorl_mq.errors import ServerUnfit
from prorl_mq.rules.memory import Memory
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.items import Lane
from prorl_mq.store.layout.keys import Keys, lane_name
from prorl_mq.store.moves.away import AWAY, elsewhere
from prorl_mq.store.payloads.files import PayloadFiles
from prorl_mq.store.scripts import script
from prorl_mq.store.server.connection import OUTAGES, ask, ask_many, patiently
from prorl_mq.store.server.durability import CONFIRMED, surely

BATCH: Final = 64  # items in one script call
EVENTS_CAP: Final = 20_000  # entries of the event stream; one entry holds the events of one call
PROTOCOL: Final = "2"  # what entries, tokens and leases mean: processes of one namespace share it
LEAST: Final = "2"  # the oldest protocol whose releases read right what this release leaves without jobs in flight
NO_EPOCH: Final = "EPOCH"  # how the error begins with which a script refuses to write
RESTARTS: Final = 8  # of a server within one call, each of which wants its epoch opened
DAY_MS: Final = 24 * 3600 * 1000
T = TypeVar("T")
Command = Sequence[str | int | float | bytes]

READING: Final = frozenset({
    "EXISTS", "GET", "GETRANGE", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HSCAN", "INFO", "KEYS",
    "LRANGE", "MGET", "PING", "PTTL", "SCAN", "SCARD", "SISMEMBER", "SMEMBERS", "SRANDMEMBER", "SSCAN", "STRLEN",
    "SUNION", "TIME", "TYPE", "XINFO", "XLEN", "XPENDING", "XRANGE", "XREAD", "XREVRANGE", "ZCARD", "ZCOUNT",
    "ZRANGE", "ZRANGEBYSCORE", "ZRANK", "ZSCAN", "ZSCORE",
})  # fmt: skip

USERS: Final = ("ACL", "USERS")
USAGE: Final = ("MEMORY", "USAGE")
_READING: Final = frozenset({USERS, USAGE})  # of which other words write


class Repeat(Enum):
    """Effect of a write that is sent again because its reply was lost."""

    SAME = auto()  # nothing more: it is repeated through an outage
    ONCE = auto()  # something more: it is sent once, and the caller is told that its reply is lost


def batched(items: Iterable[T], size: int = BATCH) -> Iterable[list[T]]:
    """Slices of at most `size` items."""
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


class Clock(NamedTuple):
    """Redis's clock and its correction, and the epoch with the time of its opening.

    A restart that loses the opening of an epoch gives its number again: `epoch` names the server, too.
    """

    clock_ms: int  # corrected by the offset
    floor_ms: int  # the service's time has come so far already
    offset_ms: int
    epoch: str
    number: int
    opened_ms: int

    @property
    def now_ms(self) -> int:
        """The service's time."""
        return max(self.clock_ms, self.floor_ms)


class Core:
    """One namespace, spoken to by one process (`name` shows up as owner and in events)."""

    protocol: str = PROTOCOL

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        *,
        name: str,
        outage_ms: int = 120_000,
        waiting: Redis | None = None,
        synced: bool = False,
        payloads: PayloadFiles | None = None,
        mark: str | None = None,
        confirms_reads: bool = False,
        archive: Path | None = None,
    ) -> None:
        self.redis = redis
        self.waiting = waiting or redis  # a client whose reads may block, on connections of their own
        self.keys = keys
        self.name = name
        self.outage_ms = outage_ms
        self.epoch = ""  # the last one that this process has seen, as `open_epoch` answered it
        self.mark = mark or keys.mark  # the key that this process may write before it waits for replicas
        self.confirms_reads = confirms_reads  # in replicated mode, since a trainer gets what is read
        self.acks: int | None = None  # replicas that must have what a trainer relies on; None: not known yet
        self.synced = synced  # a submission is accepted when it is on Redis's disk
        self.archive = (
            archive  # the directory of the archive, whether it is there or not; None: there is no place for one
        )
        self.payloads = payloads  # files of payloads that are too large for Redis; None: this process sees none
        # The server's memory, and until when that look is good (`fitness.memory`).
        self.memory: tuple[Memory, float] = (Memory(0, 0), -math.inf)
        self.family_lanes: frozenset[Lane] = frozenset()  # as this process last saw them (`families.look`)
        self.faulted_at = -math.inf  # when a call last failed for want of Redis, on this process's clock

    async def call(
        self, verb: str, keys: list[str], arguments: Any, *raw: bytes | int, of_run: RunRef | None = None
    ) -> Any:
        """One verb by its script, repeated until it is answered. A server of another epoch is asked for that first.

        `of_run`: the run that it writes to. Raises `RunMoved` or `RunArriving` where that is not here.
        """
        if arguments is None:
            return await self._repeated(lambda: self._run(verb, keys, None, raw))

        async def once() -> Any:
            epoch = self.epoch or await self._open_epoch()
            names, about = [self.keys.epoch, *keys], {**arguments, "epoch": epoch}
            if of_run is not None:
                names.insert(1, self.keys.away(of_run))
                about["of_run"] = True
            return await self._run(verb, names, about, raw)

        async def attempt() -> Any:
            for _ in range(RESTARTS):
                try:
                    return await once()
                except ResponseError as error:
                    if of_run is not None and str(error).startswith(AWAY):
                        raise elsewhere(of_run, *str(error).split()[1:3]) from None
                    if not str(error).startswith(NO_EPOCH):
                        raise
                await self._open_epoch()
            return await once()

        return await self._repeated(attempt)

    def stream_for(self, lane: Lane) -> str:
        """The stream for a job: the lane of its task family where this process knows that one, else the one beside it.

        A worker that lacks the family moves what it reads (`divert`): an old memo costs a step, never an attempt.
        """
        return self.keys.stage(*(lane if lane in self.family_lanes else lane._replace(family=None)))

    def lane_names(self, streams: Iterable[str]) -> dict[str, str]:
        """Those of the streams that are a task family's lane, each with its name (`lane.lua`)."""
        lanes = {stream: self.keys.lane(stream) for stream in streams}
        return {stream: lane_name(lane) for stream, lane in lanes.items() if lane.family}

    async def open_epoch(self) -> str:
        """Opens the next epoch where this server has none: its number and the first letters of its server."""
        return await self._repeated(self._open_epoch)

    async def spoken(self) -> str:
        """The protocol of the namespace, also where this process may not open its epoch."""
        found = await self.read("HGET", self.keys.epoch, "protocol")
        return found.decode() if found else "1"

    async def read(self, *command: str | int | bytes) -> Any:
        """One command that changes nothing. Raises `ValueError` for one that may, before it is sent."""
        _must_read(command)
        if await self._confirms():
            return (await self._surely([command]))[0]
        return await self._repeated(lambda: ask(self.redis, *command))

    async def wait_read(self, *command: str | float, outage_ms: int | None = None) -> Any:
        """One read that may block, never confirmed. Raises as `read` does; `outage_ms` is the store's by default."""
        _must_read(command)
        return await self._repeated(lambda: ask(self.waiting, *command), outage_ms=outage_ms)

    async def read_many(self, commands: Sequence[Command]) -> list[Any]:
        """Several reads in one round trip. Raises as `read` does."""
        for command in commands:
            _must_read(command)
        if commands and await self._confirms():
            return await self._surely(commands)
        return await self._pipeline(self.redis, commands)

    async def read_at_once(self, commands: Sequence[Command]) -> list[Any]:
        """Several reads between which nothing changes. Redis does nothing else meanwhile: keep them few."""
        for command in commands:
            _must_read(command)
        if commands and await self._confirms():
            replies: list[Any] = (await self._surely([("MULTI",), *commands, ("EXEC",)]))[-1]
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            return replies
        return await self._pipeline(self.redis, commands, at_once=True)

    async def write_surely(self, *command: str | float | bytes) -> Any:
        """One command that changes something, `Repeat.SAME`, and that a trainer relies on. Raises as `read` does."""
        if self.acks is None:
            await self._learn()
        return (await self._surely([command]))[0] if self.acks else await self.write(*command, repeat=Repeat.SAME)

    async def write(self, *command: str | float | bytes, repeat: Repeat, blocks: bool = False) -> Any:
        """One command that changes something: for the modules of `prorl_mq.store` alone, in functions with a name.

        Raises `RedisUnavailable` after `outage_ms`; with `Repeat.ONCE` after one attempt, which may have been done.
        """
        outage_ms = self.outage_ms if repeat is Repeat.SAME else 0
        return await self._repeated(lambda: ask(self.waiting if blocks else self.redis, *command), outage_ms=outage_ms)

    async def write_many(self, commands: Sequence[Command], *, blocks: bool = False) -> list[Any]:
        """Several writes in one round trip and over one connection, all of them `Repeat.SAME`: for the modules of
        `prorl_mq.store` alone.
        """
        return await self._pipeline(self.waiting if blocks else self.redis, commands)

    async def now_ms(self) -> int:
        """The service's time: Redis's clock with its jumps taken out."""
        return (await self.clock()).now_ms

    async def clock(self) -> Clock:
        """The service's time, and what makes it."""
        about = ("HMGET", self.keys.epoch, "server", "floor_ms", "offset_ms", "number", "opened_ms")
        [(seconds, micros), (server, *row)] = await self.read_many([("TIME",), about])
        floor_ms, offset_ms, number, opened_ms = (int(value or 0) for value in row)
        clock_ms = int(seconds) * 1000 + int(micros) // 1000 + offset_ms
        epoch = f"{number}-{(server or b'').decode()}"
        return Clock(clock_ms, floor_ms, offset_ms, epoch, number, opened_ms)

    async def _run(self, verb: str, keys: list[str], arguments: Any, raw: Sequence[bytes | int]) -> Any:
        """One call of a script, in replicated mode confirmed where a trainer relies on it."""
        if not (self.acks and verb in CONFIRMED):
            return await script(verb)(self.redis, keys, arguments, *raw)
        by_name, by_text = script(verb).commands(keys, arguments, *raw)
        try:
            [reply] = await self._confirmed([by_name], self.acks)
        except NoScriptError:
            [reply] = await self._confirmed([by_text], self.acks)
        return reply

    async def _confirmed(self, commands: Sequence[Command], acks: int) -> list[Any]:
        within_s, epoch = self.outage_ms / 1000, self.keys.epoch
        found = await surely(self.waiting, commands, mark=self.mark, epoch=epoch, acks=acks, within_s=within_s)
        self.acks = found.acks
        return found.replies

    async def _surely(self, commands: Sequence[Command]) -> list[Any]:
        return await self._repeated(lambda: self._confirmed(commands, self.acks or 1))

    async def _confirms(self) -> bool:
        """True if what is read now must be confirmed."""
        if self.confirms_reads and self.acks is None:
            await self._learn()
        return self.confirms_reads and bool(self.acks)

    async def _learn(self) -> None:
        """Finds out whether the namespace is in replicated mode. A trainer's user of an earlier release may not."""
        try:
            found = await self._repeated(lambda: ask(self.redis, "HGET", self.keys.epoch, "acks"))
        except NoPermissionError:
            found = None
        self.acks = int(found or 0)

    async def _open_epoch(self) -> str:
        """In replicated mode nothing is written in an epoch before its opening is confirmed."""
        while True:
            epoch, acks, state = await self._opened()
            if state == b"opening":  # on the connection of the WAIT: another one may lead to another server
                _, asked = script("open_epoch").commands(*self._opening())
                [(again, _, _)] = await self._confirmed([asked], acks)
                epoch, acks, state = await self._opened(confirmed=again.decode())
            if state == b"open":
                self.epoch, self.acks = epoch.decode(), acks
                return self.epoch

    def _opening(self, confirmed: str = "") -> tuple[list[str], dict[str, str]]:
        about = {"seen": self.epoch, "protocol": self.protocol, "confirmed": confirmed}
        return [self.keys.epoch, self.keys.in_flight], about

    async def _opened(self, *, confirmed: str = "") -> tuple[bytes, int, bytes]:
        try:
            epoch, acks, state = await script("open_epoch")(self.redis, *self._opening(confirmed))
        except ResponseError as error:
            name, *about = str(error).split(" ")
            if name != "PROTOCOL":
                raise
            raise ServerUnfit(self._foreign(*about)) from error
        return epoch, acks, state

    def _foreign(self, number: str, chosen: str = "") -> str:
        """Why this process is refused in a namespace of another protocol."""
        facts = f"the namespace {self.keys.namespace!r} speaks protocol {number}, this release {self.protocol}, and "
        if chosen:
            return f"{facts}`prorl-mq upgrade` has chosen that: start a release of protocol {number}, or choose again"
        return (
            f"{facts}jobs are in flight there: let the other release end them (`prorl-mq upgrade`), or use another "
            "namespace (PRORL_NAMESPACE)"
        )

    async def _repeated(self, attempt: Callable[[], Awaitable[T]], *, outage_ms: int | None = None) -> T:
        async def noted() -> T:
            try:
                return await attempt()
            except OUTAGES:
                self.faulted_at = monotonic()
                raise

        return await patiently(noted, outage_ms=self.outage_ms if outage_ms is None else outage_ms)

    async def _pipeline(self, redis: Redis, commands: Sequence[Command], *, at_once: bool = False) -> list[Any]:
        if not commands:
            return []
        return await self._repeated(lambda: ask_many(redis, commands, at_once=at_once))


def _must_read(command: Command) -> None:
    name = command[0]
    if name not in READING and tuple(command[:2]) not in _READING:
        raise ValueError(f"{name!r} may change something: call a verb, or a function of prorl_mq.store that writes")


class Raw(list[bytes]):
    """Bytes beside the packed argument: the argument holds their places in ARGV."""

    def put(self, data: bytes) -> int:
        if not data:
            return 0
        self.append(data)
        return len(self) + 1


def text(reply: bytes) -> str:
    return reply.decode()


def texts(reply: Iterable[bytes]) -> list[str]:
    return [each.decode() for each in reply]
