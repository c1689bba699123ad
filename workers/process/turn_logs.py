"""Records of turns on their way to Redis, in batches: those of all jobs that came while the last call was under way."""

import asyncio
from collections.abc import Sequence

from prorl_mq.errors import RedisUnavailable
from prorl_mq.rules.memory import log_room
from prorl_mq.schema.items import Logged
from prorl_mq.store.server import fitness
from prorl_mq.store.store import BATCH, Store
from workers.stages.job_log import FULL


class TurnLogs:
    """The logging loop of one worker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[Logged, asyncio.Future[str]]] = []
        self._some = asyncio.Event()

    def send(self, record: Logged) -> "asyncio.Future[str]":
        """Sends a record with the next call: its answer as `JobVerbs.log` gives it, or `FULL`. Those of one job are
        logged in the order in which they came. Nobody need wait for it.
        """
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_seen)
        self._waiting.append((record, answer))
        self._some.set()
        return answer

    async def run(self) -> None:
        """Logs until it is cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                await self._send(batch)

    async def _send(self, batch: Sequence[tuple[Logged, "asyncio.Future[str]"]]) -> None:
        try:
            answers = await self._answers([record for record, _ in batch])
        except RedisUnavailable:
            raise
        except Exception as error:
            if len(batch) > 1:
                for each in batch:
                    await self._send([each])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        for (_, answer), said in zip(batch, answers, strict=True):
            if not answer.done():
                answer.set_result(said)

    async def _answers(self, records: Sequence[Logged]) -> list[str]:
        room = log_room(await fitness.memory(self._store))
        full = room is not None and room < 0
        kept = [record for record in records if record.data is None or not full]
        said = iter(await self._store.log(kept) if kept else ())
        return [next(said) if record.data is None or not full else FULL for record in records]


def _seen(answer: "asyncio.Future[str]") -> None:
    """An error that nobody waits for is found again with the next record, which is then out of its order."""
    if not answer.cancelled():
        answer.exception()
