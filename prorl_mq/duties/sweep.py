"""Housekeeping: results that a trainer read and acknowledged on the stream itself, old messages, idle runs."""

from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.intake import ANSWER_FIELD, TRAINERS
from prorl_mq.store import results
from prorl_mq.store.store import Broker

ANSWERS_KEPT_MS = 3600 * 1000
IDLE_RUN_MS = 7 * 24 * 3600 * 1000
AT_ONCE = 256


class Janitor:
    """The sweeping loop."""

    def __init__(self, broker: Broker, *, lease_ms: int) -> None:
        self.broker = broker
        self.lease_ms = lease_ms

    async def turn(self) -> float:
        """Looks at every run once."""
        broker, keys = self.broker, self.broker.keys
        await broker.read("XTRIM", keys.cancels, "MINID", await self.broker.now_ms() - 2 * self.lease_ms)
        runs = [RunRef(run.decode()) for run in await broker.read("ZRANGE", keys.runs, 0, -1)]
        for run in runs:
            if await broker.read("EXISTS", keys.results(run)):
                await self._acknowledged(run)
        for run in await broker.read(
            "ZRANGEBYSCORE", keys.runs, "-inf", await self.broker.now_ms() - IDLE_RUN_MS, "LIMIT", 0, 64
        ):
            await self._retire(RunRef(run.decode()))
        return 0.5

    async def _acknowledged(self, run: RunRef) -> None:
        """Deletes what the trainer's consumer group has acknowledged, and answers that are old."""
        broker, stream = self.broker, self.broker.keys.results(run)
        limit = await results.oldest_unread(broker, run, TRAINERS)
        rows = await broker.read("XRANGE", stream, "-", "+", "COUNT", AT_ONCE)
        old = await self.broker.now_ms() - ANSWERS_KEPT_MS
        answers, read = [], []
        for entry, fields in rows:
            cursor = entry.decode()
            done = limit is not None and results.before(cursor, limit)
            if fields[0] in results.RESULTS and done:
                read.append(cursor)
            elif fields[0] == ANSWER_FIELD and (done or int(cursor.partition("-")[0]) < old):
                answers.append(cursor)
        if answers:
            await broker.read("XDEL", stream, *answers)
        if read:
            await results.acknowledge(broker, run, read)
        elif not rows:
            await broker.ack(run, [])  # removes an empty stream that could not go with its last result

    async def _retire(self, run: RunRef) -> None:
        """Forgets a run that nobody has used for a week and that holds nothing."""
        keys = self.broker.keys
        if not await self.broker.read("EXISTS", keys.backlog(run), keys.results(run), keys.open_groups(run)):
            await self.broker.read("ZREM", keys.runs, run)
            await self.broker.read("HDEL", keys.run_settings, run)
            await self.broker.read("UNLINK", keys.run(run))
