"""Turns of this process that wait for room in the caches of their pools, and the seats that its sessions have there.

While a pool is short of room (`PoolView.limits`), each turn asks the pool's ledger before it begins. The turns of one
process ask together: when one of them comes, and once a second while any waits. A seat that its process does not renew
ends by itself. Nobody waits for longer than its patience, whatever the ledger, Redis or other processes do.
"""

import asyncio
import contextlib
import logging
import zlib
from array import array
from collections.abc import Awaitable, Callable
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.rules.routing.room import Ask, Seat, SeatState, decide, needs
from prorl_mq.schema.ids import public
from prorl_mq.store import pools as backends
from prorl_mq.store.pools import PoolView, Seats
from prorl_mq.store.server.faults import FAULTS
from prorl_mq.store.store import Store
from workers import metrics
from workers.inference.assignment import Endpoint, TurnUnderWay
from workers.inference.waits import Waits
from workers.node.sweeping import repeat
from workers.stages.work import Work

ASK_S: Final = 1.0  # between two questions for turns that wait
LIFE_MS: Final = 30_000.0  # of a seat that is not renewed
TRIES: Final = 8  # of one question, while other processes change the ledger
log = logging.getLogger("workers.stages.rooms")


class _Turn:
    """A turn that is to begin."""

    def __init__(self, ask: Ask, since: float) -> None:
        self.ask, self.since = ask, since
        self.asked = False
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._since_ms: float | None = None

    @property
    def place(self) -> str | None:
        """The backend that it was told to begin on."""
        return self.answer.result() if self.answer.done() and not self.answer.cancelled() else None

    def at(self, now_ms: float) -> Ask:
        """The ask at the service's time. Since when it waits stays what its row says first, whole and whatever that
        clock does since: of two turns all questions know the same one as the older.
        """
        began_ms = now_ms - 1000 * (monotonic() - self.since)
        if self._since_ms is None:
            self._since_ms = float(round(began_ms))
        return self.ask._replace(since_ms=self._since_ms, patience_ms=self.ask.patience_ms + began_ms - self._since_ms)


class Rooms:
    """The ledgers of the pools in which this process has sessions."""

    def __init__(self, store: Store, view: Callable[[str], Awaitable[PoolView]], waits: Waits) -> None:
        self._store, self._view, self._waits = store, view, waits
        self._ledgers: dict[str, _PoolLedger] = {}
        self._due = asyncio.Event()

    async def run(self) -> None:
        """Asks for turns that wait, and renews seats, until it is cancelled."""
        await repeat(self._turn, every_s=ASK_S, what="ask for room in pools")

    async def begin(self, pool: str, ask: Ask, since: float) -> str:
        """The backend on which a turn may begin now, after a wait where there is no room. `since`: when it asked first,
        on this process's clock; the ask's own time is not read.
        """
        ledger = self._ledgers.setdefault(pool, _PoolLedger(self._store, pool))
        turn = ledger.turns[ask.ref] = _Turn(ask, since)
        self._due.set()
        started = monotonic()
        try:
            async with asyncio.timeout(max(0.0, since + ask.patience_ms / 1000 - started)):
                await ledger.ask(await self._view(pool), turn)
                if not turn.answer.done():
                    with self._waits.noted(f"room in the caches of pool {public(pool)!r}"):
                        await turn.answer
        except TimeoutError:
            ledger.take(turn)
        except asyncio.CancelledError:
            ledger.give_up(ask.ref)
            raise
        except Exception as error:
            if ledger.knows(ask.ref):
                ledger.take(turn)
            _tell(pool, error, "a turn begins without it")
        finally:
            if ledger.turns.get(ask.ref) is turn:
                del ledger.turns[ask.ref]
            metrics.room_seconds.observe(monotonic() - started)
        return turn.place or ask.address

    def sized(self, pool: str, ref: str, tokens: int) -> None:
        """Turns of a session that runs have begun or ended: those under way need so many tokens together."""
        if pool in self._ledgers:
            self._ledgers[pool].change(ref, tokens, SeatState.RUNNING)

    def ended(self, pool: str, ref: str, tokens: int) -> None:
        """The last turn of a session has ended, whose context has so many tokens now."""
        if pool in self._ledgers:
            self._ledgers[pool].change(ref, tokens, SeatState.TOOLS)

    def left(self, pool: str, ref: str) -> None:
        """An attempt is over: its seat is free."""
        if pool in self._ledgers:
            self._ledgers[pool].leave(ref)

    async def _turn(self) -> None:
        await self._due.wait()
        for pool, ledger in list(self._ledgers.items()):
            try:
                await ledger.ask(await self._view(pool))
            except Exception as error:  # of one pool: turns of the others wait, too
                _tell(pool, error, "it is asked again")
            if ledger.idle:
                del self._ledgers[pool]
        if not self._ledgers:
            self._due.clear()


def _tell(pool: str, error: Exception, then: str) -> None:
    ours = None if isinstance(error, FAULTS) else error  # with where it was raised
    log.warning("the ledger of pool %r cannot be asked, %s: %s", public(pool), then, error, exc_info=ours)


class _PoolLedger:
    """One pool's ledger as this process knows it, and its own part of that."""

    def __init__(self, store: Store, pool: str) -> None:
        self._store, self._pool = store, pool
        self.turns: dict[str, _Turn] = {}  # that want to begin
        self._known = Seats()
        self._ahead_ms: float | None = None  # of the service's time before this process's clock
        self._mine: dict[str, Seat] = {}  # sessions of this process, as they are
        self._gone = set[str]()  # those that have left, and may still be in Redis
        self._asking = asyncio.Lock()

    @property
    def idle(self) -> bool:
        return not (self.turns or self._mine or self._gone)

    def knows(self, ref: str) -> bool:
        """True if a session of this process has a seat."""
        return ref in self._mine

    def take(self, turn: _Turn) -> None:
        """A turn begins, unless it was told just now where."""
        if turn.place is None:
            ask, now_ms = turn.ask, self._now_ms()
            self._mine[ask.ref] = ask.seat(ask.address, SeatState.RUNNING, now_ms, now_ms + LIFE_MS)

    def give_up(self, ref: str) -> None:
        """A turn does not begin. Its session keeps its seat: without one, its next turn would pass those that wait."""
        seat = self._mine.get(ref)
        if seat is None:
            self.leave(ref)
        elif seat.state is not SeatState.TOOLS:
            self._mine[ref] = seat._replace(state=SeatState.OUT)

    def change(self, ref: str, tokens: int, state: SeatState) -> None:
        if (seat := self._mine.get(ref)) is not None and seat.state is SeatState.RUNNING:
            now_ms = self._now_ms()
            self._mine[ref] = seat._replace(
                tokens=tokens,
                shared=min(seat.shared, tokens),
                state=state,
                since_ms=now_ms,
                until_ms=now_ms + LIFE_MS,
            )

    def leave(self, ref: str) -> None:
        self._mine.pop(ref, None)
        self._gone.add(ref)

    async def ask(self, view: PoolView, turn: _Turn | None = None) -> None:
        """Decides about all turns of this process that want to begin, unless `turn` was among those of the question
        before. Raises Redis's faults.
        """
        async with self._asking:
            if turn is not None and turn.asked:
                return
            if not view.limits:
                self._relieved()
                return
            if self._ahead_ms is None:
                self._ahead_ms = await self._store.now_ms() - monotonic() * 1000
            for _ in range(TRIES):
                if await self._try(view):
                    return

    async def _try(self, view: PoolView) -> bool:
        """False if another process has changed the ledger meanwhile: this one knows it then as it is."""
        now_ms, turns, mine, known = self._now_ms(), list(self.turns.values()), dict(self._mine), self._known.seats
        gone, self._gone = self._gone, set()
        try:
            seats = {ref: seat for ref, seat in known.items() if ref not in gone}
            seats |= {ref: _as_known(seat, known.get(ref)).renewed(now_ms, LIFE_MS) for ref, seat in mine.items()}
            asks = [each.at(now_ms) for each in turns]
            limits = {at: limit for at, limit in view.limits.items() if view.unfit(at) is None}  # turns leave those
            answers = decide(seats, limits, asks, now_ms, LIFE_MS, view.takers)
            rows = {ref: seats.get(ref) for ref in known.keys() | seats.keys() if known.get(ref) != seats.get(ref)}
            if rows or mine or "" in answers:  # others may have changed the ledger, or Redis have lost its last second
                self._known, done = await backends.seat(self._store, self._pool, self._known, rows)
                self._ahead_ms = self._known.now_ms - monotonic() * 1000
                if not done:
                    return False
            gone = set()
        finally:
            self._gone |= gone
        self._mine |= {ref: seats[ref] for ref, seat in mine.items() if self._mine.get(ref) is seat and ref in seats}
        for each, address in zip(turns, answers, strict=True):
            each.asked = True
            if self.turns.get(each.ask.ref) is each and not each.answer.done():
                self._mine[each.ask.ref] = seats[each.ask.ref]
                if address:
                    each.answer.set_result(address)
        return True

    def _relieved(self) -> None:
        """The pool has no ledger any more; what is left of it in Redis ends by itself."""
        self._mine, self._gone, self._known = {}, set(), Seats()
        for turn in self.turns.values():
            with contextlib.suppress(asyncio.InvalidStateError):
                turn.answer.set_result(turn.ask.address)

    def _now_ms(self) -> float:
        return float(round(monotonic() * 1000 + (self._ahead_ms or 0.0)))


def _as_known(mine: Seat, known: Seat | None) -> Seat:
    """A seat of this process, which others may have given away while its tools work. Of all else they know less, also
    where Redis has lost its last second.
    """
    pushed = known is not None and known.state is SeatState.OUT and mine.state is SeatState.TOOLS
    return known if known is not None and pushed and known.since_ms == mine.since_ms else mine


class AttemptSeat:
    """The seat of one attempt, which turns that it has at once share: it needs the sum of theirs, and keeps the room of
    the largest afterwards.
    """

    def __init__(self, rooms: Rooms, work: Work, move: Callable[[str], Awaitable[Endpoint]]) -> None:
        """`move` moves the job to the backend of an address, if that may be taken."""
        self._rooms, self._work, self._move = rooms, work, move
        self._ref = (work.spec.pool, work.held.token)
        self._turns: dict[TurnUnderWay, float] = {}  # under way, and when each asked first
        self._asking = asyncio.Lock()
        self._kept = 0  # tokens of the largest context since turns were last under way
        self._over = False  # the attempt: what it has left running takes no seat
        work.left.unseat = self._left
        self.latest: Endpoint | None = None  # that the job was assigned
        self.served = ""  # the backend of the turn before

    async def begin(self, backend: Endpoint, turn: TurnUnderWay, patience_s: float) -> Endpoint:
        """Waits for room: the backend on which a turn may begin. The first of several turns at once asks, and the
        others begin with it.
        """
        since = monotonic()
        async with self._asking:
            if self._over:
                return backend
            since = self._turns.setdefault(turn, since)
            if len(self._turns) == 1:
                try:
                    return await self._ask(backend, turn, since, patience_s)
                except BaseException:
                    self.ended(turn)
                    raise
            backend = self.latest or backend  # to which the first one may have moved
            self._rooms.sized(*self._ref, self._needed())
            return backend

    def ended(self, turn: TurnUnderWay) -> None:
        """With the last of several turns the seat runs no longer, and keeps the room of what is in the cache."""
        if self._turns.pop(turn, None) is None:
            return
        self._kept = max(self._kept, turn.context)
        if self._turns:
            self._rooms.sized(*self._ref, self._needed())
        else:
            self._rooms.ended(*self._ref, self._kept)
            self._kept = 0

    async def _ask(self, backend: Endpoint, turn: TurnUnderWay, since: float, patience_s: float) -> Endpoint:
        pool, token = self._ref
        avoid, (opening, shared) = frozenset[str](), _opening(turn)
        while True:
            warm, tokens = self.served == backend.address, needs(turn.context, turn.answer)
            ask = Ask(token, backend.address, tokens, 0, warm, 1000 * patience_s, avoid, opening, shared)
            place = await self._rooms.begin(pool, ask, since)
            if place == backend.address:
                return backend
            backend = await self._move(place)
            if backend.address == place:
                return backend
            avoid |= {place}  # it is full, say: this turn asks for its own one

    def _left(self) -> None:
        self._over = True
        self._rooms.left(*self._ref)

    def _needed(self) -> int:
        return sum(needs(each.context, each.answer) for each in self._turns)


def _opening(turn: TurnUnderWay) -> tuple[str, int]:
    """The name and the tokens of the prompt that a turn's session began with; nothing where that is not its prefix."""
    if not 0 < turn.opening <= len(turn.prompt):
        return "", 0
    return f"{zlib.crc32(array('Q', turn.prompt[: turn.opening])):08x}", turn.opening
