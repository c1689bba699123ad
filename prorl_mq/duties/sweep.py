"""Housekeeping: results that a trainer read and acknowledged on the stream itself, old messages, idle runs."""

from functools import partial

from prorl_mq.duties.apart import Apart
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.intake import TRAINERS
from prorl_mq.store import results, runs, streams
from prorl_mq.store.store import Store

ANSWERS_KEPT_MS = 3600 * 1000
IDLE_RUN_MS = 7 * 24 * 3600 * 1000
AT_ONCE = 256


class Janitor:
    """The sweeping loop."""

    def __init__(self, store: Store, *, lease_ms: int) -> None:
        self.store = store
        self.lease_ms = lease_ms
        self._apart = Apart(store, "sweep")

    async def turn(self) -> float:
        """Looks at every run once."""
        store = self.store
        await streams.trim_cancels(store, older_than_ms=await store.now_ms() - 2 * self.lease_ms)
        for run in await runs.known(store):
            if not self._apart.left_out(run):
                await self._apart.do(run, partial(self._acknowledged, run))
        for run in await runs.idle(store, for_ms=IDLE_RUN_MS, limit=64):
            await self._apart.do(run, partial(store.retire_run, run, idle_ms=IDLE_RUN_MS))
        return 0.5

    async def _acknowledged(self, run: RunRef) -> None:
        """Deletes what the trainer's consumer group has acknowledged, and answers that are old."""
        store = self.store
        if not await results.exist(store, run):
            return
        limit = await results.oldest_unread(store, run, TRAINERS)
        entries = await results.oldest(store, run, limit=AT_ONCE)
        old = await self.store.now_ms() - ANSWERS_KEPT_MS
        answers, read = [], []
        for entry in entries:
            done = limit is not None and results.before(entry.cursor, limit)
            if entry.is_result and done:
                read.append(entry.cursor)
            elif entry.is_answer and (done or entry.came_ms < old):
                answers.append(entry.cursor)
        await results.drop_answers(store, run, answers)
        if read:
            await results.acknowledge(store, run, read)
