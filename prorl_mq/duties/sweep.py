"""Housekeeping: results that a trainer has acknowledged on the stream itself, old messages, idle runs."""

from functools import partial
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.duties.acknowledged import AcknowledgedResults
from prorl_mq.duties.apart import Apart
from prorl_mq.rules.turns import SharedTurns
from prorl_mq.schema.ids import RunRef, run_of, tenant_of
from prorl_mq.store import batches, breakers, runs, streams
from prorl_mq.store.store import Store

IDLE_RUN_MS = 7 * 24 * 3600 * 1000
IDLE_LOOK_S: Final = 60.0
IDLE_AT_ONCE: Final = 64  # runs
KNOWN_S: Final = 1.0  # how long the names of all runs are known for
RUNS: Final = 64  # that have their turn at one look, beside those that were acknowledged from at the last one


class Janitor:
    """The sweeping loop. It remembers how far it has looked at each run's results, and reads none of them again."""

    def __init__(self, store: Store, *, lease_ms: int) -> None:
        self.store = store
        self.lease_ms = lease_ms
        self._apart = Apart(store, "sweep")
        self._turns = SharedTurns[RunRef](RUNS, owner=tenant_of)
        self._known_until = 0.0
        self._busy: dict[RunRef, None] = {}  # runs whose trainer has just read or acknowledged results on the stream
        self._acknowledged = AcknowledgedResults(store)
        self._idle_at = 0.0
        self._in_use = 0  # idle runs that hold something, before those that are looked at next

    async def turn(self) -> float:
        """Looks at the runs whose turn it is."""
        store = self.store
        clock = await store.clock()
        now_ms = clock.now_ms
        self._acknowledged.forget_before(clock.epoch)
        await streams.trim_cancels(store, older_than_ms=now_ms - 2 * self.lease_ms)
        if monotonic() > self._known_until:
            self._turns.over(await runs.known(store))
            self._known_until = monotonic() + KNOWN_S
        looked, self._busy = [*self._busy, *self._turns.next()], {}
        for run in dict.fromkeys(looked):
            if not self._apart.left_out(run):
                await self._apart.do(run, partial(self._sweep, run, now_ms))
        if monotonic() > self._idle_at:
            await self._retire()
        return 0.5

    async def _sweep(self, run: RunRef, now_ms: int) -> None:
        if await self._acknowledged.sweep(run, now_ms):
            self._busy[run] = None

    async def _retire(self) -> None:
        """Retires a page of idle runs. Those that hold something stay where they are, so the next page lies behind."""
        drawing = {run_of(ref) for ref in await batches.not_closed(self.store)}  # one may wait for prompts of others
        idle = await runs.idle(self.store, for_ms=IDLE_RUN_MS, after=self._in_use, limit=IDLE_AT_ONCE)
        retired = 0
        for run in idle:
            if run not in drawing:
                retire = partial(self.store.retire_run, run, idle_ms=IDLE_RUN_MS)
                retired += await self._apart.do(run, retire) == "retired"
        self._in_use = self._in_use + len(idle) - retired if len(idle) == IDLE_AT_ONCE else 0
        await breakers.forget_old(self.store)
        self._idle_at = monotonic() + IDLE_LOOK_S
