"""Notifies viewers of changes: one follower per process reads the event stream for all of them.

It reads only while there is a viewer, at most four times a second, and keeps the newest changes. A viewer that is
further behind than these is told to reload everything; a slow viewer does not slow others down.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.ids import tenant_of
from prorl_mq.service.changes import lines_of
from prorl_mq.store import events
from prorl_mq.store.store import Store

PACE_S: Final = 0.25  # changes within it become one message
BLOCK_MS: Final = 4_000
ENTRIES: Final = 1_000  # in one read; where more have come, the oldest are skipped
KEPT: Final = 20_000  # lines
SHARED: Final = 1_000  # values: viewers that come with cursors of their own add some though nothing changes
T = TypeVar("T")
StreamId = tuple[int, int]


class TenantEvents(NamedTuple):
    """One entry of the event stream: its lines, by tenant."""

    id: StreamId
    lines: Mapping[str, Sequence[str]]

    @property
    def size(self) -> int:
        return sum(map(len, self.lines.values()))


class Follower:
    """Follows while there are viewers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._entries: deque[TenantEvents] = deque()
        self._held = 0  # lines of all entries
        self._shared: dict[Hashable, Any] = {}
        self._start: StreamId | None = None  # everything after it is in `_entries`
        self._watched = asyncio.Event()
        self._moved = asyncio.get_running_loop().create_future()
        self.viewers = 0

    @contextlib.contextmanager
    def viewing(self) -> Iterator[None]:
        self.viewers += 1
        self._watched.set()
        try:
            yield
        finally:
            self.viewers -= 1
            if not self.viewers:
                self._watched.clear()

    async def follow(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._watched.wait()
            with contextlib.suppress(RedisUnavailable):
                await self._read()
            await asyncio.sleep(PACE_S)

    @property
    def moved(self) -> asyncio.Future[None]:
        """Done at the next change. Take it before you look, and wait for it after."""
        return self._moved

    @property
    def last(self) -> StreamId | None:
        """The newest entry that was read; None before the first look."""
        return self._entries[-1].id if self._entries else self._start

    def since(self, cursor: StreamId, tenant: str) -> Sequence[str] | None:
        """The lines of a tenant after a cursor, oldest first; None where some of them are no longer known."""
        if self._start is None or cursor < self._start:
            return None
        return self.shared((cursor, tenant), lambda: self._since(cursor, tenant))

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """A value that is the same for all viewers with this key; made once between two looks at the stream."""
        if key not in self._shared:
            if len(self._shared) >= SHARED:
                self._shared.clear()
            self._shared[key] = make()
        found: T = self._shared[key]
        return found

    def wake(self) -> None:
        """Every viewer looks now."""
        self._moved.set_result(None)
        self._moved = asyncio.get_running_loop().create_future()

    def _since(self, cursor: StreamId, tenant: str) -> Sequence[str]:
        entries = list(itertools.takewhile(lambda entry: entry.id > cursor, reversed(self._entries)))
        return [line for entry in reversed(entries) for line in entry.lines.get(tenant, ())]

    async def _read(self) -> None:
        last = self.last
        if last is None:
            self._start = await self._newest()
        else:
            after = f"{last[0]}-{last[1]}"
            entries = await events.wait_after(self._store, after, limit=ENTRIES, wait_ms=BLOCK_MS)
            if not entries:
                return
            if len(entries) == ENTRIES:
                self._entries.clear()
                self._start, self._held = await self._newest(), 0
            else:
                self._keep(entries)
        self._shared.clear()
        self.wake()

    async def _newest(self) -> StreamId:
        last = await events.newest(self._store, limit=1)
        return entry_id(last[0].id) if last else (0, 0)

    def _keep(self, entries: Sequence[events.EventEntry]) -> None:
        for entry in entries:
            by_tenant: dict[str, list[str]] = {}
            for line in lines_of(entry.lines):
                by_tenant.setdefault(tenant_of(line), []).append(line)
            self._entries.append(TenantEvents(entry_id(entry.id), by_tenant))
            self._held += self._entries[-1].size
        while self._held > KEPT:
            left = self._entries.popleft()
            self._start, self._held = left.id, self._held - left.size


def entry_id(text: str) -> StreamId:
    """A stream id as something to compare."""
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds), int(sequence or 0)
