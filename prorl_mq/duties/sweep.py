"""Housekeeping: results that a trainer read and acknowledged on the stream itself, old messages, idle runs."""

from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.intake import ANSWER_FIELD, TRAINERS
from prorl_mq.store import results, streams
from prorl_mq.store.store import Store

ANSWERS_KEPT_MS = 3600 * 1000
IDLE_RUN_MS = 7 * 24 * 3600 * 1000
AT_ONCE = 256


class Janitor:
    """The sweeping loop."""

    def __init__(self, store: Store, *, lease_ms: int) -> None:
        self.store = store
        self.lease_ms = lease_ms

    async def turn(self) -> float:
        """Looks at every run once."""
        store, keys = self.store, self.store.keys
        await streams.trim_cancels(store, older_than_ms=await store.now_ms() - 2 * self.lease_ms)
        runs = [RunRef(run.decode()) for run in await store.read("ZRANGE", keys.runs, 0, -1)]
        for run in runs:
            if await store.read("EXISTS", keys.results(run)):
                await self._acknowledged(run)
        for run in await store.read(
            "ZRANGEBYSCORE", keys.runs, "-inf", await self.store.now_ms() - IDLE_RUN_MS, "LIMIT", 0, 64
        ):
            await store.retire_run(RunRef(run.decode()), idle_ms=IDLE_RUN_MS)
        return 0.5

    async def _acknowledged(self, run: RunRef) -> None:
        """Deletes what the trainer's consumer group has acknowledged, and answers that are old."""
        store, stream = self.store, self.store.keys.results(run)
        limit = await results.oldest_unread(store, run, TRAINERS)
        rows = await store.read("XRANGE", stream, "-", "+", "COUNT", AT_ONCE)
        old = await self.store.now_ms() - ANSWERS_KEPT_MS
        answers, read = [], []
        for entry, fields in rows:
            cursor = entry.decode()
            done = limit is not None and results.before(cursor, limit)
            if fields[0] in results.RESULTS and done:
                read.append(cursor)
            elif fields[0] == ANSWER_FIELD and (done or int(cursor.partition("-")[0]) < old):
                answers.append(cursor)
        await results.drop_answers(store, run, answers)
        if read:
            await results.acknowledge(store, run, read)
        elif not rows:
            await store.ack(run, [])  # removes an empty stream that could not go with its last result
