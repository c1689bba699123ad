"""A worker that has taken all there was awaits the next job at once, and looks lane by lane while there may be more."""

from typing import Any

import pytest

from prorl_mq.clock import monotonic
from prorl_mq.schema.items import Advance
from prorl_mq.schema.messages import Stage
from prorl_mq.store import work
from prorl_mq.store.server.connection import RedisSettings
from tests.support.queue import Queue
from tests.worker.stage import made, options
from workers.process import read
from workers.process.read import Reading

pytestmark = pytest.mark.anyio
SLOTS = 8  # two of each of RUN's four streams in a read that awaits them all


class Noting(work.Reader):
    """Knows of each read how long it may have waited."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.waits: list[int | None] = []

    async def read(self, names: list[str], *, count: int, block_ms: int | None) -> Any:
        self.waits.append(block_ms)
        return await super().read(names, count=count, block_ms=block_ms)


@pytest.mark.parametrize(("jobs", "looks"), [(1, 0), (2, 2)], ids=["drained", "perhaps more"])
async def test_the_streams_are_looked_at_first_only_while_they_may_hold_more(
    jobs: int, looks: int, queue: Queue, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "BLOCK_MS", 20)
    async with made(options(settings, stage=Stage.RUN, slots=SLOTS)) as worker:
        reader = Noting(worker.store.redis, worker.store.name)
        reading = Reading(worker.settings, worker.store, reader, worker.lanes, held=worker.slots.entries)
        await reading.prepare()
        assert await reading.next(SLOTS) == []
        await queue.admitted(n=jobs)
        await queue.store.advance([Advance(held, None, b"") for held in await queue.take(Stage.INIT)])
        [found] = await reading.next(SLOTS)
        assert len(found.entries) == jobs
        reader.waits.clear()
        reading._begun_at = monotonic()  # the lanes in front have a rule of their own
        assert await reading.next(SLOTS) == []
        assert reader.waits == [None] * looks + [20]
