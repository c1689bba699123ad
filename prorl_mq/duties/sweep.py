"""Housekeeping: results that a trainer read and acknowledged on the stream itself, old messages, idle runs."""

from prorl_mq.schema.ids import RunRef, id_at, time_of
from prorl_mq.schema.intake import ANSWER_FIELD, TRAINERS
from prorl_mq.store import results
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
        await self._trim_cancels()
        runs = [RunRef(run.decode()) for run in await store.read("ZRANGE", keys.runs, 0, -1)]
        for run in runs:
            if await store.read("EXISTS", keys.results(run)):
                await self._acknowledged(run)
        for run in await store.read(
            "ZRANGEBYSCORE", keys.runs, "-inf", await self.store.now_ms() - IDLE_RUN_MS, "LIMIT", 0, 64
        ):
            await self._retire(RunRef(run.decode()))
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
            elif fields[0] == ANSWER_FIELD and (done or time_of(cursor) < old):
                answers.append(cursor)
        if answers:
            await store.read("XDEL", stream, *answers)
        if read:
            await results.acknowledge(store, run, read)

    async def _trim_cancels(self) -> None:
        """Whoever was away for two leases holds nothing any more."""
        store, stream = self.store, self.store.keys.cancels
        newest = await store.read("XREVRANGE", stream, "+", "-", "COUNT", 1)
        if newest:
            oldest = id_at(await store.now_ms() - 2 * self.lease_ms, newest[0][0].decode())
            await store.read("XTRIM", stream, "MINID", oldest)

    async def _retire(self, run: RunRef) -> None:
        """Forgets a run that nobody has used for a week and that holds nothing."""
        keys = self.store.keys
        held = [("EXISTS", keys.backlog(run), keys.open_groups(run)), ("XLEN", keys.results(run))]
        if not any(await self.store.read_many(held)):
            await self.store.read("ZREM", keys.runs, run)
            await self.store.read("HDEL", keys.run_settings, run)
            await self.store.read("UNLINK", keys.run(run), keys.results(run))
