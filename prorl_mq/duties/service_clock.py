"""The service's clock: jumps of Redis's wall clock are seen against this process's monotonic one and taken out.

A step of the host's clock by an hour must neither end every lease nor keep a dead worker alive for an hour. What is
taken out is given back slowly, so that times on pages agree with those on the wall again. Each look writes down how far
the service's time has come; no script goes below that, so that time stands still from a step back until it is noticed.
"""

import asyncio
import logging
import math
from typing import Final, NamedTuple

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
        self._last: _Look | None = None
        self._jumped_at = -math.inf
        self._restarted = False

    async def jumped(self) -> bool:
        """Looks at the clock, and puts a jump right; true if there was one."""
        async with self._look:
            return await self._jumped()

    async def keep(self) -> None:
        """Looks at the clock unless somebody has just done so: what is seldom compared drifts apart."""
        if self._last is None or monotonic() - self._last.after > self.lease_ms / 8000:
            await self.jumped()

    async def _jumped(self) -> bool:
        await self.store.open_epoch()
        before = monotonic()
        clock = await self.store.clock()
        wall_ms = clock.clock_ms - clock.offset_ms
        look, last = _Look(before, monotonic(), wall_ms, clock.offset_ms, clock.epoch), self._last
        self.epoch = clock.epoch
        self._restarted = clock.number > 1 and 0 <= clock.now_ms - clock.opened_ms < self.lease_ms
        behind_ms = clock.floor_ms - clock.clock_ms
        if last is not None and look.after - last.after > self.lease_ms / 1000 and 0 <= -behind_ms < self.lease_ms:
            last = None  # others have looked since, and put right what this process would see now
        if last is not None and look.was_put_right(last):
            self._last, self._jumped_at = look, look.after
            return True
        jump_ms = min(0.0, -behind_ms)  # a step back while nobody looked
        if last is not None:
            # What another server kept says how far its time had come: all that is in it was written by that time.
            jump_ms = look.jump_ms(last) if look.epoch == last.epoch else max(look.jump_ms(last), jump_ms)
        if abs(jump_ms) > JUMP_MS:
            await self._jump(look, look.offset_ms - round(jump_ms), f"jumped by {jump_ms / 1000:.1f} s")
            return True
        if behind_ms > JUMP_MS:
            await self._jump(look, look.offset_ms, f"was {behind_ms / 1000:.1f} s ahead for a moment")
            return True
        if look.offset_ms or -behind_ms > self.lease_ms / 8:
            since_s = look.after - last.after if last else 0.0
            step_ms = min(abs(look.offset_ms), max(1, round(1000 * since_s * GIVEN_BACK)))
            await self._shift(look, look.offset_ms - int(math.copysign(step_ms, look.offset_ms)))
        else:
            self._last = look
        return False

    async def calm(self) -> bool:
        """False for one lease after a jump, a restart and a fault of Redis: whoever is alive can renew first."""
        if await self.jumped() or self._restarted:
            return False
        return monotonic() - max(self._jumped_at, self.store.faulted_at) >= self.lease_ms / 1000

    async def _jump(self, look: "_Look", offset_ms: int, what: str) -> None:
        self._jumped_at = look.after
        answer = await self._shift(look, offset_ms, jumped=True)
        log.warning("Redis's clock %s: no lease and no deadline is moved by it (%s)", what, answer)

    async def _shift(self, look: "_Look", offset_ms: int, *, jumped: bool = False) -> str:
        """Shifts the offset. One that another process has changed meanwhile is left for the next look."""
        answer = await self.store.shift_clock(
            seen_ms=look.offset_ms, offset_ms=offset_ms, jumped=jumped, lease_ms=self.lease_ms
        )
        if answer == "shifted":
            self._last = look._replace(offset_ms=offset_ms)
        return answer


class _Look(NamedTuple):
    """One look at Redis's clock and at its correction, between two times of this process's own."""

    before: float
    after: float
    wall_ms: int
    offset_ms: int
    epoch: str

    def was_put_right(self, last: "_Look") -> bool:
        """True if another process has seen a jump. It is believed: two that see one differently would take turns."""
        return self.epoch == last.epoch and abs(self.offset_ms - last.offset_ms) > JUMP_MS

    def jump_ms(self, last: "_Look") -> float:
        """By how much the clock went further, or less far, than the time that has passed since the last look. A restart
        may have lost the offset: that is a jump as well.
        """
        passed_ms, least_ms = self.wall_ms - last.wall_ms, 1000 * (self.before - last.after)
        most_ms = 1000 * (self.after - last.before)
        if self.epoch != last.epoch:
            passed_ms += self.offset_ms - last.offset_ms
        return passed_ms - most_ms if passed_ms > most_ms else min(0.0, passed_ms - least_ms)
