"""Runs apart: what the keys of one run do to a duty ends nobody else's turn.

A trainer may write to its intake and its results by itself, also a key of another kind than a stream.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from prorl_mq.clock import monotonic
from prorl_mq.errors import RunArriving, RunMoved
from prorl_mq.store import runs
from prorl_mq.store.server.faults import RedisError, is_everybodys
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.duties")
T = TypeVar("T")
SAYS: Final = "duty %s leaves %r out for a while, the others have their turn: %r%s"
ITS_KEYS: Final = "; look at its keys"

LEFT_OUT_S: Final = 10.0  # until a run that failed is looked at again
TOLD: Final = 1_024  # runs that are remembered as logged


class Apart:
    """One duty's work for single runs. A run that fails is left out for a while, logged once and counted."""

    def __init__(self, store: Store, duty: str) -> None:
        self._store = store
        self._duty = duty
        self._until: dict[str, float] = {}
        self._told: set[str] = set()

    def left_out(self, run: str) -> bool:
        """True for `LEFT_OUT_S` after the run has failed."""
        return self._until.get(run, 0.0) > monotonic()

    async def do(self, run: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """Does one piece of work of a run; None where it fails. Raises what Redis does to everybody."""
        try:
            return await work()
        except (RunMoved, RunArriving):
            self._pass_over(run)
            return None
        except Exception as error:
            if is_everybodys(error):
                raise
            await self.leave_out(run, error)
            return None

    async def leave_out(self, run: str, why: Exception) -> None:
        """Passes the run over from now on, for `LEFT_OUT_S`."""
        self._pass_over(run)
        await runs.count_left_out(self._store, self._duty)
        if run not in self._told:
            trace = None if isinstance(why, RedisError) else why
            level, hint = (logging.WARNING, ITS_KEYS) if trace is None else (logging.ERROR, "")
            log.log(level, SAYS, self._duty, run, why, hint, exc_info=trace)
            self._told = self._told | {run} if len(self._told) < TOLD else {run}

    def _pass_over(self, run: str) -> None:
        now = monotonic()
        self._until = {name: until for name, until in self._until.items() if until > now}
        self._until[run] = now + LEFT_OUT_S
