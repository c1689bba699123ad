"""Room in the caches of backends: which turns may begin now, and which ones wait. Pure.

A backend keeps the prefix of a session while the agent's tools work, as long as it needs the room for nothing else.
Where more sessions take turns on it than fit, each turn computes its prefix again and pushes out the next one's. So a
pool that is short of room has a ledger: the tokens that each session needs on its backend. A turn begins where its
session fits; else it waits, the oldest first. Whoever waits gets what is kept for tools that work for long, and before
a backend idles what it keeps for any. A session whose backend falls behind moves to one with far fewer sessions. The
service and its simulation (`bench/routing`) ask these functions alike.
"""

import math
from collections import Counter
from collections.abc import Container, Mapping, MutableMapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from prorl_mq.rules.routing.pressure import MOST, SHARE, CacheLimit

IDLE: Final = 0.3  # part of its limit that running turns need: below, a turn that waits begins in place of what is kept
KEPT_MS: Final = 30_000  # a session whose tools have worked for so long gives way to one that waits
MARGIN: Final = 0.5  # a session moves to a backend with so much of its own one's sessions, to compute its prefix again
UNHEARD: Final = 512  # tokens that the first answer of a session is expected to have


class SeatState(StrEnum):
    """State of a session on its backend."""

    RUNNING = "r"  # a turn
    TOOLS = "t"  # it is between two turns, and its prefix is worth keeping
    WAITING = "w"  # for room
    OUT = "o"  # between two turns; its room was given to another one


LIVE: Final = frozenset({SeatState.RUNNING, SeatState.TOOLS})  # its prefix is worth room


class Seat(NamedTuple):
    """One session of the ledger."""

    address: str
    tokens: int  # that it needs: its context and half of the expected answer
    state: SeatState
    since_ms: float  # it has been in that state; of one that waits, since it asked first
    until_ms: float  # it counts so long, unless its worker says more: one that died counts no longer
    opening: str = ""  # name of the prompt that it began with; those of one name on a backend share its tokens
    shared: int = 0  # tokens of that, of its own ones

    @property
    def text(self) -> str:
        row = f"{self.state.value} {self.tokens} {self.since_ms:.0f} {self.until_ms:.0f} {self.address}"
        return f"{row} {self.shared} {self.opening}" if self.opening else row

    def renewed(self, now_ms: float, life_ms: float) -> "Seat":
        """The seat for `life_ms` from now on, once half of its life is over: each change is a write."""
        return self._replace(until_ms=now_ms + life_ms) if self.until_ms - now_ms < life_ms / 2 else self


class Ask(NamedTuple):
    """A turn that is to begin."""

    ref: str
    address: str  # of the backend that its job holds
    tokens: int
    since_ms: float  # it asked first
    warm: bool  # the session has had a turn on this backend
    patience_ms: float  # then it begins, whatever the ledger says
    avoid: frozenset[str] = frozenset()  # backends that it cannot move to
    opening: str = ""  # as of a seat
    shared: int = 0

    def seat(self, address: str, state: SeatState, since_ms: float, until_ms: float) -> Seat:
        return Seat(address, self.tokens, state, since_ms, until_ms, self.opening, self.shared)


def read_seat(text: str) -> Seat | None:
    """The reverse of `Seat.text`. None for a row that this release cannot read, as of a later one."""
    try:
        state, tokens, since_ms, until_ms, address, *rest = text.split(" ")
        shared, opening = rest or (0, "")
        seat = Seat(address, int(tokens), SeatState(state), float(since_ms), float(until_ms), opening, int(shared))
    except ValueError:
        return None
    sound = 0 <= seat.shared <= seat.tokens <= MOST and math.isfinite(seat.since_ms) and math.isfinite(seat.until_ms)
    return seat if sound else None


def expected(answers: int, sampled: int, most: int) -> int:
    """Tokens of the next answer of a session that has given `answers` with `sampled` tokens, and may give `most`."""
    return min(most, sampled // answers if answers else UNHEARD)


def needs(context: int, answer: int) -> int:
    """Tokens that a session needs while an answer of so many is sampled: on the mean half of them are there."""
    return context + answer // 2


def decide(
    seats: MutableMapping[str, Seat],
    limits: Mapping[str, CacheLimit],
    asks: Sequence[Ask],
    now_ms: float,
    life_ms: float,
    takers: Container[str] | None = None,
) -> list[str]:
    """For each turn the backend that it may begin on, or an empty text: it waits. Writes the seats down.

    `limits`: by address; a backend that is not there has room for all. A seat lasts for `life_ms`. `takers`: backends
    that sessions may move to; None: all that have limits.
    """
    ledger = _Ledger(seats, limits, now_ms, limits if takers is None else takers)
    answers = []
    for ask in asks:
        before, address = seats.get(ask.ref), ledger.place(ask)
        if address:
            seats[ask.ref] = ask.seat(address, SeatState.RUNNING, now_ms, now_ms + life_ms)
        elif before is not None and before[:3] == (ask.address, ask.tokens, SeatState.WAITING):
            seats[ask.ref] = before.renewed(now_ms, life_ms)
        else:
            seats[ask.ref] = ask.seat(ask.address, SeatState.WAITING, ask.since_ms, now_ms + life_ms)
        ledger.add(ask.ref)
        answers.append(address)
    return answers


class _Sum:
    """Tokens of some seats of one backend. An opening that several of them have counts once."""

    def __init__(self) -> None:
        self.tokens = 0
        self._openings = Counter[tuple[str, int]]()

    def joined(self, ask: Ask) -> int:
        """Tokens here together with this one."""
        return self.tokens + ask.tokens - (ask.shared if self._openings[ask.opening, ask.shared] else 0)

    def add(self, seat: Seat, sign: int) -> None:
        """Adds a seat, or takes it away."""
        self.tokens += sign * (seat.tokens - seat.shared)
        if seat.shared:
            key = seat.opening, seat.shared
            self._openings[key] += sign
            if self._openings[key] == (1 if sign > 0 else 0):
                self.tokens += sign * seat.shared


class _Ledger:
    """Sums over the seats, as they are now."""

    def __init__(
        self,
        seats: MutableMapping[str, Seat],
        limits: Mapping[str, CacheLimit],
        now_ms: float,
        takers: Container[str],
    ) -> None:
        self.seats, self.limits, self.now_ms, self.takers = seats, limits, now_ms, takers
        self.loads = {address: _Sum() for address in limits}
        self.busy = {address: _Sum() for address in limits}  # of that, turns that run
        self.runs: dict[str, dict[str, Seat]] = {address: {} for address in limits}
        self.sessions = dict.fromkeys(limits, 0)
        self.between: dict[str, list[tuple[float, str]]] = {address: [] for address in limits}
        self.waits: dict[str, list[tuple[float, int]]] = {address: [] for address in limits}
        for ref in [ref for ref, seat in seats.items() if seat.until_ms < now_ms]:
            del seats[ref]
        for ref in seats:
            self.add(ref)

    def add(self, ref: str, sign: int = 1) -> None:
        seat = self.seats[ref]
        address = seat.address
        if address not in self.loads:
            return
        self.sessions[address] += sign
        if seat.state is SeatState.RUNNING:
            self.loads[address].add(seat, sign)
            self.busy[address].add(seat, sign)
            if sign > 0:
                self.runs[address][ref] = seat
            else:
                del self.runs[address][ref]
        elif seat.state is SeatState.TOOLS:
            self.loads[address].add(seat, sign)
            _put(self.between[address], (seat.since_ms, ref), sign)
        elif seat.state is SeatState.WAITING:
            _put(self.waits[address], (seat.since_ms, seat.tokens), sign)

    def place(self, ask: Ask) -> str:
        own = self.seats.get(ask.ref)
        if own is not None:
            self.add(ask.ref, -1)
            del self.seats[ask.ref]
        at, limit = ask.address, self.limits.get(ask.address)
        if limit is None or not self.runs[at] or self.now_ms - ask.since_ms >= ask.patience_ms:
            return at
        if limit.behind and (lighter := self._lighter(ask)):
            return lighter
        live = own.state in LIVE and own.address == at if own is not None else ask.warm
        if live:
            return at if self._made(at, limit.tokens, ask) else ""
        if self._free(at, ask) >= 0:
            return at
        free = {each: self._free(each, ask) for each in self._others(ask)}
        other = max(free, key=lambda each: (free[each], each), default="")
        if other and free[other] >= 0:
            return other
        return at if self._next(at, ask) and self._given(at, ask) else ""

    def _next(self, address: str, ask: Ask) -> bool:
        """True if of those that could begin beside what runs it has waited for longest."""
        fits = self.limits[address].tokens - self.busy[address].tokens
        return all(since >= ask.since_ms or tokens > fits for since, tokens in self.waits[address])

    def _given(self, address: str, ask: Ask) -> bool:
        """True if sessions whose tools work for long give way to it, or any of them where the backend idles else."""
        most = self.limits[address].tokens
        if self.busy[address].tokens < IDLE * most:
            return self._made(address, most, ask)
        return self._made(address, SHARE * most, ask, self.now_ms - KEPT_MS)

    def _lighter(self, ask: Ask) -> str:
        """A backend that keeps up, has room, and so few sessions that moving pays; empty: there is none."""
        fit = [each for each in self._others(ask) if not self.limits[each].behind and self._free(each, ask) >= 0]
        best = min(fit, key=lambda each: (self.sessions[each], each), default="")
        return best if best and self.sessions[best] + 1 <= MARGIN * (self.sessions[ask.address] + 1) else ""

    def _others(self, ask: Ask) -> list[str]:
        return [each for each in self.limits if each in self.takers and each not in ask.avoid]

    def _free(self, address: str, ask: Ask) -> float:
        """Room that is left with this one and those that have waited for longer. Of these, one that is larger than what
        running turns leave is passed: none that is between turns could make room for it.
        """
        most = SHARE * self.limits[address].tokens
        left = most - self.loads[address].joined(ask)
        if left < 0 or not self.waits[address]:
            return left
        fits = most - self.busy[address].tokens
        return left - sum(tokens for since, tokens in self.waits[address] if since < ask.since_ms and tokens <= fits)

    def _made(self, address: str, most: float, ask: Ask, since_ms: float = math.inf) -> bool:
        """True if it fits, or will once those sessions between turns are out whose tools have worked longest: of those
        that began until then.
        """
        out = list[tuple[str, Seat]]()
        for since, ref in sorted(self.between[address]):
            if since > since_ms or self.loads[address].joined(ask) <= most:
                break
            out.append((ref, self.seats[ref]))
            self._put_in(ref, self.seats[ref]._replace(state=SeatState.OUT))
        if self.loads[address].joined(ask) <= most:
            return True
        for ref, seat in out:
            self._put_in(ref, seat)
        return False

    def _put_in(self, ref: str, seat: Seat) -> None:
        self.add(ref, -1)
        self.seats[ref] = seat
        self.add(ref)


def _put(rows: list[tuple[float, int]] | list[tuple[float, str]], row: tuple, sign: int) -> None:  # type: ignore[type-arg]
    if sign > 0:
        rows.append(row)
    else:
        rows.remove(row)
