"""The service's clock: jumps of Redis's wall clock are seen against this process's monotonic one and taken out.

A step of the host's clock by an hour must neither end every lease nor keep a dead worker alive for an hour. What is
taken out is given back slowly, so that times on pages agree with those on the wall again.
"""

import asyncio
import logging
import math
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import time_of
from prorl_mq.store import events
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.duties")

JUMP_MS: Final = 500  # between two looks; less is the slewing of a time daemon, and a busy machine
GIVEN_BACK: Final = 0.02  # of the time that passes


class ServiceClock:
    """One process's look at the clock, for all its duties. `lease_ms` is that of the workers."""

    def __init__(self, store: Store, *, lease_ms: int) -> None:
        self.store = store
        self.lease_ms = lease_ms
        self.epoch = 0  # that was open at the last look
        self._look = asyncio.Lock()  # two duties share the clock
        self._looked_at: float | None = None
        self._now_ms = 0
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
        now_ms, offset_ms, self.epoch, opened_ms = await self.store.clock()
        after = monotonic()
        self._restarted = self.epoch > 1 and now_ms - opened_ms < self.lease_ms
        last, self._looked_at = self._looked_at, after
        passed_ms, self._now_ms = now_ms - self._now_ms, now_ms
        if last is None:
            return await self._went_back_unseen(offset_ms)
        jump_ms = _beyond(passed_ms, least_ms=1000 * (before - last), most_ms=1000 * (after - last))
        if abs(jump_ms) > JUMP_MS:
            self._jumped_at = after
            await self._shift(offset_ms, offset_ms - round(jump_ms), f"Redis's clock jumped by {jump_ms / 1000:.1f} s")
            return True
        if offset_ms:
            step = min(abs(offset_ms), max(1, round(1000 * (after - last) * GIVEN_BACK)))
            await self._shift(offset_ms, offset_ms - step if offset_ms > 0 else offset_ms + step)
        return False

    async def _went_back_unseen(self, offset_ms: int) -> bool:
        """Puts a jump right that came while no process looked: the newest event is then later than now."""
        newest = await events.newest(self.store, limit=1)
        back_ms = time_of(newest[0].id) - self._now_ms if newest else 0
        if back_ms <= JUMP_MS:
            return False
        self._jumped_at = monotonic()
        await self._shift(offset_ms, offset_ms + back_ms, f"Redis's clock went back by {back_ms / 1000:.1f} s or more")
        return True

    async def calm(self) -> bool:
        """False for one lease after a jump, a restart and a fault of Redis: whoever is alive can renew first."""
        if await self.jumped() or self._restarted:
            return False
        return monotonic() - max(self._jumped_at, self.store.faulted_at) >= self.lease_ms / 1000

    async def _shift(self, seen_ms: int, offset_ms: int, why: str = "") -> None:
        answer = await self.store.shift_clock(seen_ms=seen_ms, offset_ms=offset_ms, lease_ms=self.lease_ms)
        if why:
            log.warning("%s: no lease and no deadline is moved by it (%s)", why, answer)
        self._looked_at = None if answer == "moved" else self._looked_at
        self._now_ms += offset_ms - seen_ms if answer == "shifted" else 0


def _beyond(passed_ms: float, *, least_ms: float, most_ms: float) -> float:
    """By how much a clock went further, or less far, than the time that has passed."""
    return passed_ms - most_ms if passed_ms > most_ms else min(0.0, passed_ms - least_ms)
