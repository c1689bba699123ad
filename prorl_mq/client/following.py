"""Following a run's results over restarts of either side: in order, none twice, none left out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from prorl_mq.client.patience import Backoff, Waiting
from prorl_mq.client.repeats import Repeats
from prorl_mq.client.transport import Closed, ClosedBatch, ClosedGroup, Door, Unreachable
from prorl_mq.schema.messages import BatchStatus

REMEMBERED: Final = 65_536  # group ids: Redis may publish one again after a crash that lost its last second


class Following:
    """One reader's place in the results of one run."""

    def __init__(
        self, door: Door, run_id: str, after: str | None, repeats: Repeats | None = None, waiting: Waiting | None = None
    ) -> None:
        self.door = door
        self.run_id = run_id
        self.after = after or "0"
        self._repeats = repeats or Repeats()
        self._waiting = waiting
        self._seen: dict[tuple[str, str], str] = {}  # batch and group → cursor

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
        backoff = Backoff(self._waiting)
        while True:
            try:
                page = await self.door.page(self.run_id, self.after, wait_s)
            except Unreachable as error:
                await asyncio.sleep(backoff.step_s(error))
            else:
                fresh = [closed for closed in page if self._fresh(closed) and isinstance(closed, ClosedGroup)]
                await self._acknowledge_repeats()
                return fresh

    async def _acknowledge_repeats(self) -> None:
        """Those of groups that were acknowledged before they came again. What fails now is tried with the next page."""
        owed = self._repeats.owed(self.run_id)
        if owed:
            with suppress(Unreachable):
                await self.door.ack(self.run_id, owed)
                self._repeats.acknowledged(self.run_id, owed)

    async def _status(self, batch_id: str) -> BatchStatus:
        backoff = Backoff(self._waiting)
        while True:
            try:
                return await self.door.batch(f"{self.run_id}:{batch_id}")
            except Unreachable as error:
                await asyncio.sleep(backoff.step_s(error))

    def _fresh(self, closed: Closed) -> bool:
        self.after = closed.cursor
        if isinstance(closed, ClosedBatch):
            return False
        name = (closed.record.submitted_in or closed.record.batch_id, closed.record.group_id)
        first = self._seen.setdefault(name, closed.cursor)
        if first != closed.cursor:
            self._repeats.came_again(self.run_id, first, closed.cursor)
            return False
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return True
