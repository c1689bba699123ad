"""The seat of one attempt in the ledger of its pool. Turns that it has at once share that."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from prorl_mq.clock import monotonic
from prorl_mq.rules.routing.room import Ask, needs
from workers.inference.assignment import Endpoint, Turn
from workers.stages.rooms import Rooms
from workers.stages.work import Work


class AttemptSeat:
    """Turns under way on one seat. While several are, it needs the sum of theirs; afterwards the largest is kept."""

    def __init__(self, rooms: Rooms, work: Work, move: Callable[[str], Awaitable[Endpoint]]) -> None:
        """`move` moves the job to the backend of an address, if that may be taken."""
        self._rooms, self._work, self._move = rooms, work, move
        self._ref = (work.spec.pool, work.held.token)
        self._turns: dict[Turn, float] = {}  # under way, and when each asked first
        self._asking = asyncio.Lock()
        self._kept = 0  # tokens of the largest context since turns were last under way
        self.latest: Endpoint | None = None  # that the job was assigned
        self.served = ""  # the backend of the turn before

    async def begin(self, backend: Endpoint, turn: Turn, patience_s: float) -> Endpoint:
        """Waits for room: the backend on which a turn may begin. The first of several turns at once asks, and the
        others begin with it.
        """
        since = monotonic()
        async with self._asking:
            since = self._turns.setdefault(turn, since)
            if len(self._turns) == 1:
                try:
                    return await self._ask(backend, turn, since, patience_s)
                except BaseException:
                    self.ended(turn)
                    raise
            backend = self.latest or backend  # to which the first one may have moved
            self._rooms.shared(*self._ref, backend.address, self._needed())
            return backend

    def ended(self, turn: Turn) -> None:
        """With the last of several turns the seat runs no longer, and keeps the room of what is in the cache."""
        if self._turns.pop(turn, None) is None:
            return
        self._kept = max(self._kept, turn.context)
        if self._turns:
            self._rooms.shrunk(*self._ref, self._needed())
        else:
            self._rooms.ended(*self._ref, self._kept)
            self._kept = 0

    async def _ask(self, backend: Endpoint, turn: Turn, since: float, patience_s: float) -> Endpoint:
        pool, token = self._ref
        avoid = frozenset[str]()
        self._work.left.unseat = partial(self._rooms.left, pool, token)
        while True:
            warm, tokens = self.served == backend.address, needs(turn.context, turn.answer)
            ask = Ask(token, backend.address, tokens, 0, warm, 1000 * patience_s, avoid)
            place = await self._rooms.begin(pool, ask, since)
            if place == backend.address:
                return backend
            moved = await self._move(place)
            if moved.address != backend.address:
                return moved
            avoid |= {place}  # it is full, say: this turn waits for its own one

    def _needed(self) -> int:
        return sum(needs(each.context, each.answer) for each in self._turns)
