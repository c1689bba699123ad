"""Repeating calls while the service restarts. Every call may be sent twice, so a lost answer does no harm."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from prorl_mq import chance
from prorl_mq.client.transport import Unreachable
from prorl_mq.clock import monotonic

T = TypeVar("T")
FIRST_S: Final = 0.1
LONGEST_S: Final = 5.0


class Backoff:
    """Waits that grow and are jittered, so that many trainers do not come back at one moment."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def step_s(self, said_s: float | None = None) -> float:
        """The next wait, at least what the service said."""
        wait_s = max(said_s or 0.0, self._next_s * (0.5 + chance.fraction()))
        self._next_s = min(self._next_s * 2, LONGEST_S)
        return wait_s


async def persistently(attempt: Callable[[], Awaitable[T]], *, patience_s: float) -> T:
    """Repeats an unreachable service's call until the patience is over, then raises its last `Unreachable`."""
    give_up, backoff = monotonic() + patience_s, Backoff()
    while True:
        try:
            return await attempt()
        except Unreachable as error:
            wait_s = backoff.step_s(error.retry_after_s)
            if monotonic() + wait_s > give_up:
                raise
            await asyncio.sleep(wait_s)
