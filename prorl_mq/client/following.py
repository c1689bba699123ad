"""Following a run's results over restarts of either side: in order, none twice, none left out."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from prorl_mq.client.patience import Backoff
from prorl_mq.client.transport import Closed, ClosedBatch, ClosedGroup, Door, Unreachable
from prorl_mq.schema.messages import BatchStatus

REMEMBERED: Final = 65_536  # group ids: Redis may publish one again after a crash that lost its last second


class Following:
    """One reader's place in the results of one run."""

    def __init__(self, door: Door, run_id: str, after: str | None) -> None:
        self.door = door
        self.run_id = run_id
        self.after = after or "0"
        self._seen: dict[str, None] = {}

    async def forever(self, wait_s: float) -> AsyncIterator[ClosedGroup]:
        while True:
            for group in await self._page(wait_s):
                yield group

    async def until_closed(self, batch_id: str, wait_s: float) -> AsyncIterator[ClosedGroup]:
        """The groups of one batch, and the end once all are in. Other batches' groups stay for other readers."""
        got = 0
        status = await self._status(batch_id)
        while True:
            # Read after the status: what closed before it is on the stream already.
            place = self.after
            for group in await self._page(wait_s if status.open else 0.0):
                if group.record.batch_id == batch_id:
                    got += 1
                    yield group
            # Groups join a DAPO batch and leave it: it has ended when it says so, which is after its last group.
            if (got >= status.groups and status.dapo is None) or (not status.open and self.after == place):
                return
            status = await self._status(batch_id)

    async def _page(self, wait_s: float) -> list[ClosedGroup]:
        backoff = Backoff()
        while True:
            try:
                page = await self.door.page(self.run_id, self.after, wait_s)
            except Unreachable as error:
                await asyncio.sleep(backoff.step_s(error.retry_after_s))
            else:
                return [closed for closed in page if self._fresh(closed) and isinstance(closed, ClosedGroup)]

    async def _status(self, batch_id: str) -> BatchStatus:
        backoff = Backoff()
        while True:
            try:
                return await self.door.batch(f"{self.run_id}:{batch_id}")
            except Unreachable as error:
                await asyncio.sleep(backoff.step_s(error.retry_after_s))

    def _fresh(self, closed: Closed) -> bool:
        self.after = closed.cursor
        if isinstance(closed, ClosedBatch):
            return False
        name = closed.record.group_id
        if name in self._seen:
            return False
        self._seen[name] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return True
