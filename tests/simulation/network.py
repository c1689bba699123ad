"""A simulated network between processes and the one server: latencies in ticks, so that replies fall into one turn.

Blocking reads are tries: a reader without an answer is parked until a write names one of its keys.
"""

import asyncio
import hashlib
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from hiredis import pack_command
from redis.exceptions import ConnectionError, NoScriptError, TimeoutError

from prorl_mq.store import scripts
from tests.simulation.loop import PROCESS, Loop, Process
from tests.simulation.server import EPOCH_US, NAMES, Server, said
from tests.simulation.trace import Command, Step, shown

TICK_S: Final = 100e-6
TICKS: Final = (0, 1, 1, 1, 2, 3, 8)
TIME_KEPT: Final = b"jumped"  # an argument of `shift_clock`
ASKS_TIME: Final = pack_command(("TIME",))
MEASURING: Final = tuple((each,) for each in (scripts.script("peek").sha, scripts.script("peek").text))  # of its memory
READS: Final = frozenset({
    "PING", "TIME", "INFO", "GET", "MGET", "HGET", "HMGET", "HGETALL", "HEXISTS", "HKEYS", "HLEN", "EXISTS", "KEYS",
    "XRANGE", "XREVRANGE", "XREAD", "XLEN", "XPENDING", "XINFO", "ZRANGE", "ZRANGEBYSCORE", "ZSCORE", "ZCARD", "ZRANK",
    "SMEMBERS", "SCARD", "SSCAN", "PTTL", "TYPE", "LLEN", "SCRIPT",
})  # fmt: skip
VIEWS: Final = frozenset({"HMGET", "HGETALL", "XPENDING", "ZRANGE"})  # what a duty reads before its verb
TAKES: Final = frozenset({"XREADGROUP", "ZMPOP", "ZPOPMIN"})  # writes that nobody waits for
REFUSES_WRITES: Final = frozenset({"READONLY", "MISCONF", "NOREPLICAS"})


class Logged(NamedTuple):
    """One call that may have written, to be sent again after a restart; without commands, a restart: `packed` is the
    server's name from then on.
    """

    now_us: int
    wall_us: int
    packed: bytes
    commands: Sequence[Command]
    replies: Sequence[Any]


@dataclass
class Weather:
    """What the network does to calls from now on; faults change it."""

    lost_request: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    again: float = 0.0  # script calls that arrive once more, after the caller has long had its answer
    refused: bool = False  # no new connections
    answer: str = ""  # what every call is answered with in place of being executed
    hold_reads: float = 0.0  # replies to a duty's read that arrive after the duty's lease
    silent: float = 0.0  # connections that take requests and never answer again


class Link:
    """One connection."""

    __slots__ = ("deadline", "future", "name", "open", "process", "silent")

    def __init__(self, process: Process | None, name: str) -> None:
        self.process = process
        self.name = name
        self.open = True
        self.silent = False
        self.deadline: float | None = None
        self.future: asyncio.Future[list[Any]] | None = None


class Parked(NamedTuple):
    """A blocking read without an answer yet."""

    link: Link
    command: Command
    keys: tuple[Any, ...]


class Network:
    """Every connection of one history, and the trace of what the server was asked."""

    def __init__(self, loop: Loop, server: Server, random: Random, luck: Random) -> None:
        self.loop = loop
        self.server = server
        self.weather = Weather()
        self.counts: Counter[str] = Counter()
        self.observers: list[Callable[[int, Command, Any], None]] = []
        self.trace: deque[Step] = deque(maxlen=400)
        self.calls = 0
        self.wall_offset_us = 0
        self.log: list[Logged] = []
        self._restarts = 0
        self._scripts: set[str] = set()  # hashes of those that were sent since the server started
        self._random = random  # of latencies
        self._luck = luck  # of faults
        self._hash = hashlib.blake2b(digest_size=16)
        self._context = Context()  # of no process
        self._links: dict[Link, None] = {}
        self._parked: dict[Any, list[Parked]] = {}
        self._numbers: Counter[str] = Counter()

    # ---- time

    @property
    def wall_us(self) -> int:
        return EPOCH_US + self.loop.now_us + self.wall_offset_us

    @property
    def digest(self) -> str:
        """Of every call so far, with its time and its reply."""
        return self._hash.hexdigest()

    def last(self, count: int) -> list[str]:
        """The newest calls of the trace, a line each."""
        return [shown(step) for step in list(self.trace)[-count:]]

    def forget(self) -> None:
        """Frees what the history kept of its calls: the collector need not look at it."""
        self.log.clear()
        self.trace.clear()

    # ---- connections

    def link(self) -> Link:
        process = PROCESS.get()
        name = str(process or "world")
        self._numbers[name] += 1
        made = Link(process, f"{name}/{self._numbers[name]}")
        self._links[made] = None
        return made

    def watch(self, process: Process) -> None:
        """Ends a process's connections some ticks after its death: what is under way still arrives."""
        process.on_death.append(lambda: self._later(self._delay(), self._end_of, process))

    def _end_of(self, process: Process) -> None:
        for link in [link for link in self._links if link.process is process]:
            self.close(link)

    def close(self, link: Link) -> None:
        """The caller's end: nothing more is delivered."""
        link.open = False
        self._links.pop(link, None)
        self._unpark(link)

    def reset(self, links: Iterable[Link] | None = None) -> None:
        """The server's end: whoever waits is told."""
        for link in list(self._links if links is None else links):
            future = link.future
            self.close(link)
            if future is not None and not future.done():
                future.set_exception(ConnectionError("connection reset by the simulation"))

    # ---- calls

    def ask(self, link: Link, commands: Sequence[Command], answer_s: float | None) -> "asyncio.Future[list[Any]]":
        """Sends commands; the future has their replies, or how the connection failed."""
        link.future = future = self.loop.create_future()
        link.deadline = None if answer_s in {None, math.inf} else self.loop.time() + (answer_s or 0.0)
        weather, luck = self.weather, self._luck
        delay = self._delay()
        if weather.lost_request and luck.random() < weather.lost_request:
            self.counts["lost request"] += 1
            self._later(delay, self.reset, [link])
        else:
            self._later(delay, self._arrive, link, commands)
        return future

    def _delay(self) -> float:
        delay = self._random.choice(TICKS) * TICK_S
        if self.weather.late and self._luck.random() < self.weather.late:
            self.counts["late"] += 1
            delay += self._luck.uniform(0.05, 3.0)
        return delay

    def _later(self, delay: float, callback: Callable[..., Any], *args: Any) -> None:
        """On a tick: what falls between two of them would never fall into one turn."""
        tick = math.ceil((self.loop.time() + delay) / TICK_S - 1e-6)
        self.loop.call_at(tick * TICK_S, callback, *args, context=self._context)

    def _arrive(self, link: Link, commands: Sequence[Command]) -> None:
        """The request is at the server. Bytes of a caller that has gone are executed like any other."""
        weather = self.weather
        if weather.silent and self._luck.random() < weather.silent:
            self.counts["silent"] += 1
            link.silent = True
        if link.silent:
            if link.deadline is not None:
                self._later(max(0.0, link.deadline - self.loop.time()), self._time_out, link)
            return
        word = weather.answer.partition(" ")[0]
        if word and not (word in REFUSES_WRITES and _only_reads(commands)):
            self.counts[f"answered {word}"] += 1
            self._reply(link, [said(weather.answer)] * len(commands))
            return
        parked = _waiting(link, commands)
        if parked is None:
            self._reply(link, self._execute(link.name, commands), viewed=commands[0][0] in VIEWS)
            if weather.again and commands[0][0] == "EVALSHA" and self._luck.random() < weather.again:
                delay = self._luck.choice((0.001, 0.1, 3.0)) * self._luck.random()
                self._later(delay, self._repeat, link.name, commands)
        elif (reply := self._try(parked)) is not None:
            self._reply(link, [reply])
        elif link.open:
            self._park(parked)
            self._later(_block_s(commands[0]), self._give_up, parked)

    def _park(self, parked: Parked) -> None:
        for key in parked.keys:
            self._parked.setdefault(key, []).append(parked)

    def _repeat(self, who: str, commands: Sequence[Command]) -> None:
        """A call that its caller had given up and sent again arrives as well; nobody waits for this answer."""
        if not self.weather.refused and not self.weather.answer:
            self.counts["again"] += 1
            self._execute(f"{who}*", commands)

    def _try(self, parked: Parked) -> Any:
        [reply] = self._execute(parked.link.name, [parked.command], parked=True)
        return reply

    def _give_up(self, parked: Parked) -> None:
        if self._is_parked(parked):
            self._unpark(parked.link)
            self._reply(parked.link, [None])

    def _is_parked(self, parked: Parked) -> bool:
        return any(each is parked for each in self._parked.get(parked.keys[0], ()))

    def _unpark(self, link: Link) -> None:
        for key, waiting in list(self._parked.items()):
            left = [each for each in waiting if each.link is not link]
            if left:
                self._parked[key] = left
            else:
                del self._parked[key]

    def _reply(self, link: Link, replies: list[Any], *, viewed: bool = False) -> None:
        weather, luck = self.weather, self._luck
        if weather.lost_reply and luck.random() < weather.lost_reply:
            self.counts["lost reply"] += 1
            self._later(self._delay(), self.reset, [link])
            return
        delay = self._delay()
        if viewed and weather.hold_reads and _is_api(link.process) and luck.random() < weather.hold_reads:
            self.counts["held read"] += 1
            delay += luck.uniform(5.0, 8.0)
            self._freeze(link.process, delay)
        if link.deadline is not None and self.loop.time() + delay > link.deadline:
            self._later(max(0.0, link.deadline - self.loop.time()), self._time_out, link)
        else:
            self._later(delay, self._deliver, link, replies)

    def _freeze(self, process: Process | None, seconds: float) -> None:
        if process is not None and not process.frozen and not process.dead:
            process.frozen = True
            self._later(seconds, process.thaw, self.loop)

    def _deliver(self, link: Link, replies: list[Any]) -> None:
        if link.open and link.future is not None and not link.future.done():
            link.future.set_result(replies)

    def _time_out(self, link: Link) -> None:
        if link.open and link.future is not None and not link.future.done():
            link.future.set_exception(TimeoutError("no answer within the simulation's time-out"))

    # ---- the server

    def _execute(self, who: str, commands: Sequence[Command], *, parked: bool = False) -> list[Any]:
        now_us = self.loop.now_us
        packed = b"".join([pack_command(command) for command in commands])
        self.server.set_time(self.wall_us, now_us)
        if packed == ASKS_TIME:  # it stands still while nothing is sent: the server is not needed for the answer
            seconds, micros = (str(each).encode() for each in divmod(self.wall_us, 1_000_000))
            replies, raw = [[seconds, micros]], b"*2\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
                len(seconds), seconds, len(micros), micros
            )  # fmt: skip
        elif self._knows(commands[0]):
            replies, raw = self.server.send(packed, len(commands))
        else:
            raw = self.server.unknown
            replies = [said(raw[1:-2].decode())]
        self.calls += len(commands)
        about_server = commands[0][0] == "INFO" or commands[0][1:2] in MEASURING
        self._hash.update(b"%d %s %b %b" % (now_us, who.encode(), packed, b"" if about_server else raw))
        if not parked or replies[0] is not None:
            self.trace.append(Step(now_us, who, commands, replies))
        self._after(now_us, packed, commands, replies)
        return replies

    def _knows(self, command: Command) -> bool:
        """Whether the server was sent the script since it started; it keeps those of earlier histories, compiled."""
        if command[0] == "EVAL":
            self._scripts.add(hashlib.sha1(command[1].encode(), usedforsecurity=False).hexdigest())
        return command[0] != "EVALSHA" or command[1] in self._scripts

    def _after(self, now_us: int, packed: bytes, commands: Sequence[Command], replies: Sequence[Any]) -> None:
        if _only_reads(commands):
            return
        if not isinstance(replies[0], NoScriptError):  # it would be known when it is sent again
            self.log.append(Logged(now_us, self.wall_us, packed, commands, replies))
        for command, reply in zip(commands, replies, strict=True):
            for observer in self.observers:
                observer(self.wall_us, command, reply)
            if command[0] not in TAKES and self._parked and not self._parked.keys().isdisjoint(command):
                self._wake(command)

    def _wake(self, command: Command) -> None:
        for key in [key for key in self._parked if key in command]:
            for parked in list(self._parked.get(key, ())):
                if self._is_parked(parked) and (reply := self._try(parked)) is not None:
                    self._unpark(parked.link)
                    self._reply(parked.link, [reply])

    def restart(self, lost_s: float) -> None:
        """The server dies and comes back with all but the writes of its last seconds, under another name."""
        self.reset()
        self._restarts += 1
        if lost_s:
            self._forget(self.loop.now_us - int(lost_s * 1e6))
        self.server.set_time(self.wall_us, self.loop.now_us)
        self._scripts.clear()
        self.server.rename(NAMES[self._restarts])
        self.log.append(Logged(self.loop.now_us, self.wall_us, NAMES[self._restarts], (), ()))

    def _forget(self, keep_until_us: int) -> None:
        """What came later was never written: the server is sent the rest again, at its own times.

        A store is older than the second that it loses: its epoch and its time were written before.
        """
        kept = (each.now_us for each in self.log if TIME_KEPT in each.packed and each.replies == [b"shifted"])
        keep_until_us = max(keep_until_us, next(kept, 0))
        self.log = [each for each in self.log if each.now_us <= keep_until_us]
        self.server.empty()
        for name in scripts.names():
            self.server.call(("SCRIPT", "LOAD", scripts.script(name).text))
        for each in self.log:
            self.server.set_time(each.wall_us, each.now_us)
            if each.commands:
                self.server.send(each.packed, len(each.commands))
            else:
                self.server.rename(each.packed)


def _is_api(process: Process | None) -> bool:
    return process is not None and process.name.startswith("api")


def _only_reads(commands: Sequence[Command]) -> bool:
    return all(command[0] in READS for command in commands)


def _waiting(link: Link, commands: Sequence[Command]) -> Parked | None:
    """A blocking read as a try, or None for any other command."""
    command = commands[0]
    if command[0] == "BZMPOP":
        return Parked(link, ("ZMPOP", *command[2:]), (command[3],))
    if command[0] not in {"XREAD", "XREADGROUP"} or "BLOCK" not in command:
        return None
    at, streams = command.index("BLOCK"), command.index("STREAMS")
    places = command[streams + 1 :]
    return Parked(link, command[:at] + command[at + 2 :], places[: len(places) // 2])


def _block_s(command: Command) -> float:
    if command[0] == "BZMPOP":
        return float(command[1])
    return float(command[command.index("BLOCK") + 1]) / 1000
