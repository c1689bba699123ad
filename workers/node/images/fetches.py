"""Fetches of images in the background of a worker: no job's slot, budget or attempt is spent on them."""

import asyncio
import contextlib
import logging
from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.store.images import records as images
from prorl_mq.store.images.records import ImageRecord
from prorl_mq.store.server.faults import FAULTS
from prorl_mq.store.store import Store
from sandbox.errors import ImageUnavailable, SandboxError
from sandbox.images.cache import ImageCache
from sandbox.images.layers.fetching import FetchProgress
from sandbox.images.layers.storage import BlobStorage
from workers import metrics
from workers.node.images.turns import AT_ONCE, FetchTurns

TRIES: Final = 3
BACK_OFF_S: Final = 1.0  # doubled at each try
NOTE_S: Final = 1.0  # between two records of how far a fetch is
log = logging.getLogger("workers.node.images")


class Fetches:
    """Of one process. What becomes of each is noted in Redis, for the jobs that wait, the node's other processes and
    people.
    """

    def __init__(self, store: Store, cache: ImageCache, storage: BlobStorage, node: str) -> None:
        self._store = store
        self._cache = cache
        self._storage = storage
        self._node = node
        self._running: dict[str, asyncio.Task[None]] = {}
        self.turns = FetchTurns()
        self._limit = asyncio.Semaphore(AT_ONCE)

    def start(self, name: str, key: str) -> None:
        """Fetches an image unless this process does already; it has its turn (`turns`), which then ends."""
        if key not in self._running:
            task = asyncio.create_task(self._logged(name, key), name=f"image {name}")
            self._running[key] = task
            task.add_done_callback(lambda _: self._ended(key))

    def put_back(self, key: str) -> None:
        """Gives back the turn of an image that is not fetched after all."""
        if key not in self._running:
            self.turns.done(key)

    def _ended(self, key: str) -> None:
        self._running.pop(key, None)
        self.turns.done(key)

    async def aclose(self) -> None:
        """Stops all fetches. What has arrived stays: the next fetch continues from there."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def fetch(self, name: str, key: str) -> ImageRecord:
        """Fetches an image here and now, with bounded tries; the record of how that ended."""
        async with self._limit:
            for number in range(1, TRIES + 1):
                try:
                    return await self._fetched(name, key)
                except SandboxError as error:
                    final = not error.retryable
                    log.warning("image %s, try %d of %d: %s", name, number, TRIES, error)
                    if final or number == TRIES:
                        metrics.image_fetches.labels("failed").inc()
                        return await self._noted(name, key, "failed", why=str(error)[:1000], final=final)
                await asyncio.sleep(BACK_OFF_S * 2 ** (number - 1))
        raise AssertionError

    async def _logged(self, name: str, key: str) -> None:
        try:
            await self.fetch(name, key)
        except FAULTS as error:
            log.warning("image %s: %s", name, error)
        except Exception as error:  # of our own: jobs would else wait for it without end
            log.exception("image %s", name)
            await self._noted(name, key, "failed", why=f"{type(error).__name__}: {error}"[:1000])

    async def _fetched(self, name: str, key: str) -> ImageRecord:
        progress = FetchProgress(self._storage)
        noting = asyncio.create_task(self._note(name, key, progress), name=f"progress of {name}")
        began = monotonic()
        try:
            image = await self._cache.fetch(name, progress)
        except OSError as error:
            raise ImageUnavailable(f"the cache of images: {error}") from error
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)
        image.close()
        metrics.image_fetches.labels("fetched").inc()
        log.info("image %s is on node %s after %.1f s", name, self._node, monotonic() - began)
        return await self._noted(name, key, "ready", done=progress.total, total=progress.total)

    async def _note(self, name: str, key: str, progress: FetchProgress) -> None:
        before, at = await asyncio.to_thread(progress.done), monotonic()
        first, since = before, at
        while True:
            done = await asyncio.to_thread(progress.done)
            if progress.total and not first:
                first, since = done, monotonic()
            rate = max(0.0, (done - first) / max(0.001, monotonic() - since))
            state = "unpacking" if progress.unpacking else "fetching"
            with contextlib.suppress(*FAULTS):
                await self._noted(name, key, state, done=done, total=progress.total, rate=rate)
            await asyncio.sleep(NOTE_S)

    async def _noted(self, name: str, key: str, state: str, **more: object) -> ImageRecord:
        now_ms = await self._store.now_ms()
        record = ImageRecord(key=key, name=name, node=self._node, state=state, ms=now_ms, **more)  # type: ignore[arg-type]
        await images.note(self._store, record)
        return record
