"""Closed groups of clients' runs, each given to the request that waits for it.

One task follows a run while anybody waits there. A group is waited for by one request at a time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import RunRef, group_ref
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.store import results
from prorl_mq.store.server.faults import RedisError
from prorl_mq.store.store import Store

FOLLOW_MS = 30_000
PAUSE_S = 0.5  # after Redis refused a read


class Gone(Exception):
    """The group has no record any more: it was acknowledged."""


class Stopped(Exception):
    """Its client has stopped its server."""


class Arrival(NamedTuple):
    """A closed group, and what acknowledges it."""

    cursor: str
    record: GroupRecord


class Arrivals:
    """Results that the requests of one process wait for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._awaited: dict[RunRef, dict[str, asyncio.Future[Arrival]]] = {}
        self._following: dict[RunRef, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Following ends with this context."""
        async with asyncio.TaskGroup() as self._tasks:
            try:
                yield
            finally:
                for task in self._following.values():
                    task.cancel()

    def awaited(self, run: RunRef) -> frozenset[str]:
        """The groups that a request has taken to wait for."""
        return frozenset(self._awaited.get(run, ()))

    def take(self, run: RunRef, name: str) -> bool:
        """Takes a group to wait for; false if another request has it. Give it back with `give_back`."""
        awaited = self._awaited.setdefault(run, {})
        if name in awaited:
            return False
        awaited[name] = asyncio.get_running_loop().create_future()
        return True

    def give_back(self, run: RunRef, name: str) -> None:
        awaited = self._awaited[run]
        future = awaited.pop(name)
        if not future.cancel() and not future.cancelled():
            future.exception()  # nobody waits any more who would have been told
        if not awaited:
            del self._awaited[run]

    async def decided(self, run: RunRef, name: str) -> bool:
        """Waits beside the request that has taken a group; false if it was given back before it closed."""
        future = self._awaited[run][name]
        await asyncio.wait({future})
        return not future.cancelled() and future.exception() is None

    def stop(self, run: RunRef) -> None:
        """Every request that waits gets `Stopped`."""
        for future in self._awaited.get(run, {}).values():
            if not future.done():
                future.set_exception(Stopped())

    async def wait(self, run: RunRef, name: str) -> Arrival:
        """A group that was taken, when it has closed. Raises `Gone` or `Stopped`."""
        future = self._awaited[run][name]
        await self._be_followed(run)
        known, result = await results.of_group(self._store, group_ref(run, name))
        if result is not None and not future.done():
            future.set_result(Arrival(result.cursor, decode(result.record, GroupRecord)))
        if not known and not future.done():
            raise Gone
        return await future

    async def _be_followed(self, run: RunRef) -> None:
        """A record that is there already is looked for afterwards, so that none falls between."""
        if run in self._following:
            return
        after = await results.last_cursor(self._store, run)
        if run not in self._following and self._tasks is not None:
            self._following[run] = self._tasks.create_task(self._follow(run, after), name=f"follow {run}")

    async def _follow(self, run: RunRef, after: str) -> None:
        try:
            while run in self._awaited:
                for found in await self._page(run, after):
                    after = found.cursor
                    future = self._awaited.get(run, {}).get(found.record.group_id)
                    if future is not None and not future.done():
                        future.set_result(found)
        finally:
            del self._following[run]

    async def _page(self, run: RunRef, after: str) -> list[Arrival]:
        """The results that closed next; none while Redis is away."""
        try:
            page = await results.collect(self._store, run, after=after, wait_ms=FOLLOW_MS)
        except (RedisUnavailable, RedisError):
            await asyncio.sleep(PAUSE_S)
            return []
        return [Arrival(each.cursor, decode(each.record, GroupRecord)) for each in page if not each.of_batch]
