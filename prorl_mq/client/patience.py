"""Repeating calls while the service restarts. Every call may be sent twice, so a lost answer does no harm."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from prorl_mq import chance
from prorl_mq.client.transport import Unreachable
from prorl_mq.clock import monotonic

T = TypeVar("T")
Waiting = Callable[[Unreachable, float], None]  # told of the error, and for how many seconds it has been so
FIRST_S: Final = 0.1
LONGEST_S: Final = 5.0
TELL_S: Final = 1.0  # a shorter outage is nothing to speak of


class Backoff:
    """Waits that grow and are jittered, so that many trainers do not come back at one moment.

    `waiting` is called with each error of an outage that has lasted a second.
    """

    def __init__(self, waiting: Waiting | None = None) -> None:
        self._next_s = FIRST_S
        self._failing_since: float | None = None
        self._waiting = waiting

    def step_s(self, error: Unreachable) -> float:
        """The next wait, at least what the service said."""
        now = monotonic()
        self._failing_since = self._failing_since or now
        lasted = now - self._failing_since
        if self._waiting is not None and lasted >= TELL_S:
            self._waiting(error, lasted)
        wait_s = max(error.retry_after_s or 0.0, self._next_s * (0.5 + chance.fraction()))
        self._next_s = min(self._next_s * 2, LONGEST_S)
        return wait_s


async def persistently(attempt: Callable[[], Awaitable[T]], *, patience_s: float, waiting: Waiting | None = None) -> T:
    """Repeats an unreachable service's call until the patience is over, then raises its last `Unreachable`."""
    give_up, backoff = monotonic() + patience_s, Backoff(waiting)
    while True:
        try:
            return await attempt()
        except Unreachable as error:
            wait_s = backoff.step_s(error)
            if monotonic() + wait_s > give_up:
                raise
            await asyncio.sleep(wait_s)
