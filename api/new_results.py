"""Tells requests that wait when a run has new results: a few connections to Redis for any number of requests.

Each connection blocks on the result streams of some runs. One that is added meanwhile ends that read, which begins
again with it; as long as there are fewer runs than connections, that never happens.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.ids import RunRef
from prorl_mq.store import results
from prorl_mq.store.results import Result
from prorl_mq.store.store import Store

CONNECTIONS: Final = 16
BLOCK_MS: Final = 4_000
TOGETHER_S: Final = 0.005  # runs that come within it are added at once
PAUSE_S: Final = 10e-6  # between two reads, for each run: Redis looks at all of their streams
FAULT_S: Final = 0.5  # after an outage of Redis
log = logging.getLogger("api")


class NewResults:
    """The results of one process's runs, for requests that wait for them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers = [_Reader(store) for _ in range(CONNECTIONS)]
        self._ended = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Requests are told until this context ends."""
        tasks = [asyncio.create_task(reader.run()) for reader in self._readers]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def collect(
        self,
        run: RunRef,
        *,
        after: str,
        wait_s: float,
        limit: int,
        gone: asyncio.Future[None],
        waits: Callable[[], None] | None = None,
    ) -> tuple[list[Result], str]:
        """Results after a cursor, and the cursor to continue with. Empty if none came in time or before `gone` was
        done, and where nobody may wait any more. `waits` is called once, where there is something to wait for.
        """
        ends = monotonic() + wait_s
        while True:
            found, after = await results.page(self._store, run, after=after, limit=limit)
            left_s = ends - monotonic()
            if found or left_s <= 0 or gone.done() or self._ended:
                return found, after
            if waits is not None:
                waits()
                waits = None
            await self._reader_of(run).wait(run, after, left_s, gone)

    def end(self) -> None:
        """Nobody waits any more: the process drains."""
        self._ended = True
        for reader in self._readers:
            reader.wake_all()

    def _reader_of(self, run: RunRef) -> "_Reader":
        return min(self._readers, key=lambda reader: (run not in reader.waiting, len(reader.waiting)))


class _Run:
    """Requests that wait for results of one run, of which none was there after the lowest of their cursors."""

    def __init__(self, after: str) -> None:
        self.after = after
        self.requests: set[asyncio.Future[None]] = set()


class _Reader:
    """One connection."""

    def __init__(self, store: Store) -> None:
        self.waiting: dict[RunRef, _Run] = {}
        self._store = store
        self._wanted = asyncio.Event()
        self._read: asyncio.Task[Sequence[RunRef]] | None = None
        self._asked: Mapping[RunRef, str] = {}

    async def wait(self, run: RunRef, after: str, within_s: float, gone: asyncio.Future[None]) -> None:
        """Until the run may have something after the cursor, or `gone` is done, and `within_s` at most."""
        about = self.waiting.setdefault(run, _Run(after))
        if results.before(after, about.after):
            about.after = after
        if self._read is not None and self._asked.get(run) != about.after:
            self._read.cancel()
        self._wanted.set()
        loop = asyncio.get_running_loop()
        request = loop.create_future()
        told = partial(_tell, request)
        gone.add_done_callback(told)
        timer = loop.call_later(within_s, told)
        about.requests.add(request)
        try:
            await request
        finally:
            gone.remove_done_callback(told)
            timer.cancel()
            about.requests.discard(request)
            if not about.requests and self.waiting.get(run) is about:
                del self.waiting[run]

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._wanted.wait()
            if not self.waiting:
                self._wanted.clear()
                continue
            try:
                pause_s = await self._turn()
            except Exception as error:  # each request asks for itself now, and tells its caller what is wrong
                log.warning("new results of %d runs cannot be waited for: %s", len(self._asked), error)
                self.wake_all()
                pause_s = FAULT_S if isinstance(error, RedisUnavailable) else TOGETHER_S
            await asyncio.sleep(pause_s)

    def wake_all(self) -> None:
        for run in list(self.waiting):
            self._wake(run)

    async def _turn(self) -> float:
        """One read; seconds to pause before the next."""
        self._asked = {run: about.after for run, about in self.waiting.items()}
        self._read = asyncio.create_task(results.of_any(self._store, self._asked, wait_ms=BLOCK_MS))
        try:
            await asyncio.wait([self._read])
            if self._read.cancelled():
                return TOGETHER_S
            for run in self._read.result():
                self._wake(run)
            return PAUSE_S * len(self._asked)
        finally:
            self._read.cancel()
            self._read = None

    def _wake(self, run: RunRef) -> None:
        about = self.waiting.pop(run, None)
        for request in about.requests if about else ():
            _tell(request)


def _tell(request: asyncio.Future[None], *_: object) -> None:
    if not request.done():
        request.set_result(None)
