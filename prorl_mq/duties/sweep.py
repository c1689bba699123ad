"""Housekeeping: results that a trainer has acknowledged on the stream itself, old messages, idle runs."""

from functools import partial

from prorl_mq.duties.acknowledged import AcknowledgedResults
from prorl_mq.duties.apart import Apart
from prorl_mq.store import runs, streams
from prorl_mq.store.store import Store

IDLE_RUN_MS = 7 * 24 * 3600 * 1000


class Janitor:
    """The sweeping loop."""

    def __init__(self, store: Store, *, lease_ms: int) -> None:
        self.store = store
        self.lease_ms = lease_ms
        self._apart = Apart(store, "sweep")
        self._acknowledged = AcknowledgedResults(store)

    async def turn(self) -> float:
        """Looks at every run once."""
        store = self.store
        await streams.trim_cancels(store, older_than_ms=await store.now_ms() - 2 * self.lease_ms)
        for run in await runs.known(store):
            if not self._apart.left_out(run):
                await self._apart.do(run, partial(self._acknowledged.sweep, run))
        for run in await runs.idle(store, for_ms=IDLE_RUN_MS, limit=64):
            await self._apart.do(run, partial(store.retire_run, run, idle_ms=IDLE_RUN_MS))
        return 0.5
