"""One maintenance loop: the process that holds its lease in Redis runs it; the others stand by."""

import asyncio
import logging
from typing import Protocol

from prorl_mq import chance
from prorl_mq.clock import monotonic
from prorl_mq.store.server.connection import cancellable
from prorl_mq.store.server.faults import FAULTS
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.duties")


class DutyTurn(Protocol):
    """One limited piece of a duty's work; answers how many seconds to wait before the next."""

    async def __call__(self) -> float: ...


class Duty:
    """A loop with a name. Two holders at once do no harm, since every verb checks what it finds; they waste work."""

    def __init__(self, store: Store, name: str, turn: DutyTurn, *, lease_ms: int = 5_000) -> None:
        self.store = store
        self.name = name
        self.turn = turn
        self.lease_ms = lease_ms
        self._held_until = 0.0
        self._beat = 0
        self._seen = ("", 0.0)  # another holder's beat, and since when it has stood still

    async def run(self) -> None:
        """Repeats the turn until it is cancelled; a turn that fails is logged, and the next one follows."""
        while True:
            try:
                if not await self._hold():
                    wait_s = self.lease_ms / 2000
                else:
                    wait_s = await cancellable(self.turn)
            except FAULTS as error:
                log.warning("duty %s: Redis failed its turn, it tries again: %s", self.name, error)
                wait_s = 0.5
            except Exception:
                log.exception("duty %s: a turn failed, it tries again", self.name)
                wait_s = 1.0
            if wait_s > 0:
                await asyncio.sleep(wait_s * (0.9 + 0.2 * chance.fraction()))

    async def leave(self) -> None:
        """Gives the lease up, so that another process takes over at once."""
        if monotonic() < self._held_until:
            await self.store.resign(self.name)

    async def _hold(self) -> bool:
        now = monotonic()
        if now < self._held_until - self.lease_ms / 1500:
            return True
        holder, since = self._seen
        dead = holder if now - since > 1.5 * self.lease_ms / 1000 else ""
        self._beat += 1
        answer = await self.store.hold(self.name, lease_ms=self.lease_ms, beat=self._beat, seen=dead)
        if answer == "held":
            self._held_until = now + self.lease_ms / 1000
        elif answer != holder:
            self._seen = (answer, now)
        return answer == "held"
