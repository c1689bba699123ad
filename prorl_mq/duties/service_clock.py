"""The service's clock: jumps of Redis's wall clock are seen against this process's monotonic one and taken out.

A step of the host's clock by an hour must neither end every lease nor keep a dead worker alive for an hour. What is
taken out is given back slowly, so that times on pages agree with those on the wall again. Each look writes down how far
the service's time has come; no script goes below that, so that time stands still from a step back until it is noticed.
"""

import asyncio
import logging
import math
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.duties")

JUMP_MS: Final = 500  # between two looks; less is the slewing of a time daemon, and a busy machine
GIVEN_BACK: Final = 0.02  # of the time that passes


class ServiceClock:
    """One process's look at the clock, for all its duties. `lease_ms` is that of the workers."""

    def __init__(self, store: Store, *, lease_ms: int) -> None:
        self.store = store
        self.lease_ms = lease_ms
        self.epoch = ""  # that was open at the last look
        self._look = asyncio.Lock()  # two duties share the clock
        self._looked_at: float | None = None
        self._clock_ms = 0
        self._jumped_at = -math.inf
        self._restarted = False

    async def jumped(self) -> bool:
        """Looks at the clock, and puts a jump right; true if there was one."""
        async with self._look:
            return await self._jumped()

    async def keep(self) -> None:
        """Looks at the clock unless somebody has just done so: what is seldom compared drifts apart."""
        if self._looked_at is None or monotonic() - self._looked_at > self.lease_ms / 8000:
            await self.jumped()

    async def _jumped(self) -> bool:
        await self.store.open_epoch()
        before = monotonic()
        clock = await self.store.clock()
        after = monotonic()
        self.epoch = clock.epoch
        self._restarted = clock.number > 1 and clock.now_ms - clock.opened_ms < self.lease_ms
        last, self._looked_at = self._looked_at, after
        passed_ms, self._clock_ms = clock.clock_ms - self._clock_ms, clock.clock_ms
        behind_ms = clock.floor_ms - clock.clock_ms
        if last is None:  # a step back while no process looked
            jump_ms = min(0.0, -behind_ms)
        else:
            jump_ms = _beyond(passed_ms, least_ms=1000 * (before - last), most_ms=1000 * (after - last))
        if abs(jump_ms) > JUMP_MS:
            await self._jump(clock.offset_ms, clock.offset_ms - round(jump_ms), f"jumped by {jump_ms / 1000:.1f} s")
            return True
        if behind_ms > JUMP_MS:
            await self._jump(clock.offset_ms, clock.offset_ms, f"was {behind_ms / 1000:.1f} s ahead for a moment")
            return True
        if clock.offset_ms or -behind_ms > self.lease_ms / 8:
            since_ms = 1000 * (after - (last or after))
            step_ms = min(abs(clock.offset_ms), max(1, round(since_ms * GIVEN_BACK)))
            await self._shift(clock.offset_ms, clock.offset_ms - int(math.copysign(step_ms, clock.offset_ms)))
        return False

    async def calm(self) -> bool:
        """False for one lease after a jump, a restart and a fault of Redis: whoever is alive can renew first."""
        if await self.jumped() or self._restarted:
            return False
        return monotonic() - max(self._jumped_at, self.store.faulted_at) >= self.lease_ms / 1000

    async def _jump(self, seen_ms: int, offset_ms: int, what: str) -> None:
        self._jumped_at = monotonic()
        answer = await self._shift(seen_ms, offset_ms, jumped=True)
        log.warning("Redis's clock %s: no lease and no deadline is moved by it (%s)", what, answer)

    async def _shift(self, seen_ms: int, offset_ms: int, *, jumped: bool = False) -> str:
        answer = await self.store.shift_clock(
            seen_ms=seen_ms, offset_ms=offset_ms, jumped=jumped, lease_ms=self.lease_ms
        )
        self._looked_at = None if answer == "moved" else self._looked_at
        self._clock_ms += offset_ms - seen_ms if answer == "shifted" else 0
        return answer


def _beyond(passed_ms: float, *, least_ms: float, most_ms: float) -> float:
    """By how much a clock went further, or less far, than the time that has passed."""
    return passed_ms - most_ms if passed_ms > most_ms else min(0.0, passed_ms - least_ms)
