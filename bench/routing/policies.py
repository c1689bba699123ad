"""Rules of routing, as the simulator asks them: where a turn begins, and whether it has to wait."""
# ruff: noqa: ARG002 - rules that do not look at a turn or at the time are asked like the others

import random
from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

from bench.routing.engine import Engine
from prorl_mq.rules.routing import pressure, room
from prorl_mq.rules.routing.pressure import EngineLoad, Pressure
from prorl_mq.rules.routing.room import Ask, Seat, SeatState

LOOK_S: Final = 2.0  # between two looks at metrics, as the service makes them
ASK_S: Final = 1.0  # between two questions of turns that wait
PATIENCE_S: Final = 300.0
BOUND: Final = 2  # sessions that the backend of a session's group may have more than another
LIFE_MS: Final = 3_600_000.0  # no worker dies here


class Turn(Protocol):
    """A session at the begin of a turn."""

    name: str
    backend: str | None  # of its turn before
    tokens: int
    group: str
    opening: int  # tokens of the prompt that its group shares

    @property
    def expected(self) -> int:
        """Tokens of its answer, as far as one can know."""
        ...


class Rule(Protocol):
    """One way to route. `slots`: sessions at once."""

    name: str
    slots: int

    def places(self, turns: Sequence[Turn], now: float) -> list[str | None]: ...

    def ended(self, turn: Turn, now: float) -> None: ...

    def left(self, turn: Turn) -> None: ...

    def look(self, now: float) -> None: ...


class _Plain:
    """No turn waits."""

    def __init__(self, name: str, engines: Sequence[Engine], slots: int, seed: int) -> None:
        self.name, self.slots = name, slots
        self.engines = {each.address: each for each in engines}
        self.jobs: Counter[str] = Counter(dict.fromkeys(self.engines, 0))
        self.source = random.Random(seed)

    def places(self, turns: Sequence[Turn], now: float) -> list[str | None]:
        return [self.place(turn, now) for turn in turns]

    def place(self, turn: Turn, now: float) -> str:
        raise NotImplementedError

    def ended(self, turn: Turn, now: float) -> None:
        pass

    def left(self, turn: Turn) -> None:
        if turn.backend is not None:
            self.jobs[turn.backend] -= 1

    def look(self, now: float) -> None:
        pass

    def _least(self) -> str:
        return min(self.jobs, key=lambda each: (self.jobs[each], self.source.random()))


class RoundRobin(_Plain):
    """Each turn goes to the next backend."""

    _next = 0

    def place(self, turn: Turn, now: float) -> str:
        self._next += 1
        return list(self.engines)[self._next % len(self.engines)]

    def left(self, turn: Turn) -> None:
        pass


class LeastLoaded(RoundRobin):
    """Each turn goes to the backend with the fewest requests."""

    def place(self, turn: Turn, now: float) -> str:
        return min(
            self.engines.values(), key=lambda each: (len(each.running) + len(each.waiting), self.source.random())
        ).address


class Sticky(_Plain):
    """The service's choice without room: a session stays on the backend that had the fewest sessions when it began, or
    that of its group, where that has at most two more.
    """

    def __init__(self, name: str, engines: Sequence[Engine], slots: int, seed: int) -> None:
        super().__init__(name, engines, slots, seed)
        self.groups: dict[str, str] = {}  # where the last session of a group began

    def place(self, turn: Turn, now: float) -> str:
        if turn.backend is not None:
            return turn.backend
        least = self._least()
        own = self.groups.get(turn.group, least)
        begins = self.groups[turn.group] = own if self.jobs[own] <= self.jobs[least] + BOUND else least
        self.jobs[begins] += 1
        return begins


class Room(Sticky):
    """Ours: sticky, and turns wait for room where a pool is short of it."""

    def __init__(self, name: str, engines: Sequence[Engine], slots: int, seed: int) -> None:
        super().__init__(name, engines, slots, seed)
        self.seats: dict[str, Seat] = {}
        self.pressure = dict.fromkeys(self.engines, Pressure())
        self.told: dict[str, EngineLoad] = {}
        self.asked: dict[str, float] = {}

    def places(self, turns: Sequence[Turn], now: float) -> list[str | None]:
        limits = {}
        if any(each.pressed for each in self.pressure.values()):
            limits = {address: pressure.limit(self.pressure[address], told) for address, told in self.told.items()}
        fresh = [turn.backend is None for turn in turns]
        for turn in turns:
            turn.backend = self.place(turn, now)  # it holds that one while it waits
        asks = [
            Ask(
                turn.name,
                turn.backend or "",
                room.needs(turn.tokens, turn.expected),
                self.asked.setdefault(turn.name, now) * 1000,
                not new,
                PATIENCE_S * 1000,
                opening=turn.group,
                shared=turn.opening,
            )
            for turn, new in zip(turns, fresh, strict=True)
        ]
        given = room.decide(self.seats, limits, asks, now * 1000, LIFE_MS) if limits else [ask.address for ask in asks]
        for turn, address in zip(turns, given, strict=True):
            if address:
                del self.asked[turn.name]
                self.jobs[turn.backend or ""] -= 1
                self.jobs[address] += 1
        return [address or None for address in given]

    def ended(self, turn: Turn, now: float) -> None:
        seat = self.seats.get(turn.name)
        if seat is not None:
            self.seats[turn.name] = seat._replace(tokens=turn.tokens, state=SeatState.TOOLS, since_ms=now * 1000)

    def left(self, turn: Turn) -> None:
        super().left(turn)
        self.seats.pop(turn.name, None)

    def look(self, now: float) -> None:
        for address, each in self.engines.items():
            told = EngineLoad(
                now * 1000, each.room * each.block, each.usage, len(each.running), len(each.waiting), each.preempted
            )
            self.pressure[address] = pressure.judge(
                self.pressure[address], self.told.get(address), told, self.jobs[address]
            )
            self.told[address] = told
