"""The clock of one attempt in RUN: it stands while infrastructure is waited for.

RUN's budget is the policy's: for sampling, tools and environments. Time in which no backend could be had, in which a
call failed, or a backend said nothing, is given back. Such waits have a budget of their own, derived from RUN's.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Final

from workers.inference.protocol import InferenceError

LONGEST_STALL_S: Final = 600.0  # of one turn
LONGEST_PARK_S: Final = 300.0  # of one turn, for room in its pool
STALL: Final = 1 / 2  # of RUN's budget, for one turn
SILENCE: Final = 1 / 3  # of that, for one call: then it is moved to another backend


class Stalled(InferenceError):
    """Infrastructure was waited for longer than a turn, or an attempt, allows. No reward comes of it."""


class RunClock:
    """The deadline of an attempt, which moves. Without a budget it never comes, and no wait is too long.

    An attempt waits for infrastructure at most as long as its budget, so it ends within twice that.
    """

    def __init__(self, budget_s: float = math.inf) -> None:
        self.deadline = asyncio.get_running_loop().time() + budget_s if budget_s < math.inf else math.inf
        self.stalled_s = 0.0
        self._budget_s = budget_s
        self._stall_s = min(LONGEST_STALL_S, budget_s * STALL) if budget_s < math.inf else math.inf
        self._limits: dict[asyncio.Timeout, float] = {}  # with what each keeps of the budget
        self._held = 0

    @property
    def silence_s(self) -> float:
        """The longest silence of a call."""
        return self._stall_s * SILENCE

    @property
    def stall_s(self) -> float:
        """The longest wait for infrastructure of a turn that begins now."""
        return min(self._stall_s, self._budget_s - self.stalled_s) if self._budget_s < math.inf else math.inf

    @property
    def park_s(self) -> float:
        """The longest wait for room of a turn that begins now. Half of an attempt's waits are left for faults."""
        left_s = min(self._stall_s, self._budget_s - 2 * self.stalled_s) if self._budget_s < math.inf else math.inf
        return max(0.0, min(LONGEST_PARK_S, left_s / 2))

    @property
    def left_s(self) -> float:
        """Time that the policy has left; negative when it is over."""
        return self.deadline - max(self._limits.values(), default=0.0) - asyncio.get_running_loop().time()

    @property
    def used_s(self) -> float:
        """Time of the policy's that is over; 0 without a budget."""
        if self._budget_s == math.inf:
            return 0.0
        return self._budget_s - (self.deadline - asyncio.get_running_loop().time())

    def charge(self, seconds: float) -> None:
        """An attempt before has used so much."""
        self.deadline -= seconds
        self._arm()

    def give_back(self, seconds: float) -> None:
        """Infrastructure took so long."""
        self.stalled_s += seconds
        self.deadline += seconds

    def limit(self, keep_s: float = 0.0) -> "_Limit":
        """Raises `TimeoutError` so long before the deadline, wherever that has moved to by then."""
        return _Limit(self._limits, keep_s, self._when(keep_s))

    @contextmanager
    def held(self) -> Iterator[None]:
        """No limit ends what is inside: it asks `left_s` itself, once it knows whose time it was."""
        self._held += 1
        self._arm()
        try:
            yield
        finally:
            self._held -= 1
            self._arm()

    def _arm(self) -> None:
        for timeout, keep_s in self._limits.items():
            if not timeout.expired():
                timeout.reschedule(self._when(keep_s))

    def _when(self, keep_s: float) -> float | None:
        return None if self._held or self.deadline == math.inf else self.deadline - keep_s


class _Limit:
    """One of a clock's `limits`, while it is entered."""

    def __init__(self, limits: dict[asyncio.Timeout, float], keep_s: float, when: float | None) -> None:
        self._limits, self._keep_s, self._timeout = limits, keep_s, asyncio.timeout_at(when)

    async def __aenter__(self) -> asyncio.Timeout:
        await self._timeout.__aenter__()
        self._limits[self._timeout] = self._keep_s
        return self._timeout

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        del self._limits[self._timeout]
        await self._timeout.__aexit__(kind, error, where)


def clock_until(deadline: RunClock | float) -> RunClock:
    """A clock as it is, or a fixed event-loop time as one."""
    if isinstance(deadline, RunClock):
        return deadline
    return RunClock(deadline - asyncio.get_running_loop().time())


class Patience:
    """The time that one turn may still wait for infrastructure."""

    def __init__(self, clock: RunClock) -> None:
        self._clock = clock
        self._left_s = clock.stall_s

    @asynccontextmanager
    async def waiting(self, what: str) -> AsyncIterator[None]:
        """The time inside is infrastructure's. Raises `Stalled` when there is no more of it."""
        clock = asyncio.get_running_loop().time
        started, limit = clock(), asyncio.timeout(self._left_s if self._left_s < math.inf else None)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise Stalled(f"waited for {what} for {clock() - started:.1f} s") from error
        finally:
            self._spend(clock() - started)

    @property
    def park_s(self) -> float:
        """As much of that as a wait for room may take."""
        return min(self._clock.park_s, self._left_s / 2)

    def lost(self, seconds: float, error: InferenceError) -> None:
        """A call failed after so long. Raises `Stalled` when no time is left for another one."""
        self._spend(seconds)
        if self._left_s <= 0:
            raise Stalled(f"calls failed until no time for them was left; the last one: {error}") from error

    def _spend(self, seconds: float) -> None:
        self._left_s -= seconds
        self._clock.give_back(seconds)
