"""Collection of payload files that nothing names: old files are listed, live keys are walked, the rest is removed.

Why it takes nothing that is named, or about to be. Let T be a moment before the walk begins, by the clock that dates
files. Only a file that was put before T - `GRACE_S` is removed, and what is removed is looked at after it was
moved aside (`PayloadFiles.take_away`). A name that was committed before T, and is still there, is seen by the walk
(`marks.walk`). One that is committed after T is of a file that was put at most as long before as a worker waits for
Redis, which is less than `GRACE_S`: it is not old. Between walk and removal lies `SETTLED_S`, and no restart of Redis:
so what the walk has seen to be gone does not come back with a lost second.
"""

import contextlib
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.store.payloads import marks, owner
from prorl_mq.store.payloads.files import OldFile, PayloadFiles
from prorl_mq.store.payloads.limits import GRACE_S, SETTLED_S
from prorl_mq.store.payloads.reading import in_thread
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.duties")
REST_S: Final = 600.0  # between two collections
TURN_S: Final = 1.0  # the longest wait between two turns, so that the duty's lease is kept
PAUSE_S: Final = 0.02  # between two pieces of a collection
FOLDERS: Final = 64  # listed in one turn
REMOVED: Final = 64  # in one turn
MOST: Final = 20_000  # files of one collection, so that what a turn remembers has a limit


class PayloadCollection:
    """The duty's state: one collection at a time, a bounded piece of it in each turn."""

    def __init__(
        self,
        store: Store,
        files: PayloadFiles,
        *,
        grace_s: float = GRACE_S,
        settled_s: float = SETTLED_S,
        rest_s: float = REST_S,
    ) -> None:
        self._store = store
        self._files = files
        self._grace_s = grace_s
        self._settled_s = settled_s
        self._rest_s = rest_s
        self._pieces: AsyncIterator[float] | None = None
        self._at = 0.0
        self._mine = False  # the directory belongs to the data of this Redis
        self._epoch = ""  # in which the walk has begun
        self._last = Path()  # the folder that was listed last: the next collection begins behind it

    async def turn(self) -> float:
        """One piece. A collection that fails is given up, and begins again after a rest."""
        if (left := self._at - monotonic()) > 0:
            return min(left, TURN_S)
        pieces, self._pieces = self._pieces or self._collect(), None
        self._at = monotonic() + self._rest_s
        async for wait_s in pieces:
            self._at = monotonic() + wait_s
            self._pieces = pieces
            return min(wait_s, TURN_S)
        return min(self._rest_s, TURN_S)

    async def _collect(self) -> AsyncIterator[float]:
        """Yields after each piece how long to wait before the next; a phase that leaves no file is the last."""
        files = self._files
        if not await in_thread(lambda: files.there):
            return
        before = await in_thread(files.now) - self._grace_s
        folders = sorted(await in_thread(files.folders))
        found = set[OldFile]()
        async for wait_s in self._owned(folders):
            yield wait_s
        if self._mine:
            for phase in (self._old(folders, found, before), self._unnamed(found), self._gone(found, before)):
                async for wait_s in phase:
                    yield wait_s
                if not found:
                    return

    async def _owned(self, folders: Sequence[Path]) -> AsyncIterator[float]:
        """Sees whether these data may collect here, and makes an unowned directory theirs."""
        files, self._mine = self._files, False
        if not folders:
            return
        if why := await owner.stranger(self._store, files):
            log.warning("duty payloads: %s", why)
            return
        mark = await owner.made(self._store)
        if not await in_thread(files.owner):
            yield self._settled_s  # a mark that Redis loses in its last second would make its own data strangers
            if await owner.known(self._store) != mark:
                return
            await in_thread(partial(files.own, mark))
        self._mine = True

    async def _old(self, folders: Sequence[Path], found: set[OldFile], before: float) -> AsyncIterator[float]:
        """Lists files that were put before a moment, beginning where the last collection has ended."""
        files, behind = self._files, bisect_right(folders, self._last)
        places = iter([*folders[behind:], *folders[:behind]])
        while len(found) < MOST and (some := list(islice(places, FOLDERS))):
            for folder in some:
                await in_thread(partial(files.tidy, folder, before))
                found.update(await in_thread(partial(files.old, folder, before)))
                self._last = folder
            yield PAUSE_S

    async def _unnamed(self, found: set[OldFile]) -> AsyncIterator[float]:
        """Leaves those that no live key names."""
        self._epoch = (await self._store.clock()).epoch
        async with contextlib.aclosing(marks.walk(self._store)) as walk:
            async for marked in walk:
                found &= marked.without(found)
                if not found:
                    return
                yield PAUSE_S
        yield self._settled_s

    async def _gone(self, found: set[OldFile], before: float) -> AsyncIterator[float]:
        """Removes them, as long as Redis has not been restarted."""
        unnamed = iter(sorted(found))
        while some := list(islice(unnamed, REMOVED)):
            if (await self._store.clock()).epoch != self._epoch:
                return
            for each in some:
                await in_thread(partial(self._files.take_away, each, before))
            yield PAUSE_S
