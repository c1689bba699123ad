"""Leases on blobs, in Redis: one process among all that share a storage fetches each."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from prorl_mq.errors import RedisUnavailable
from prorl_mq.store.images.records import DUTY
from prorl_mq.store.store import Store

LEASE_MS: Final = 10_000


class BlobLeases:
    """Implements `sandbox.images.layers.fetching.Leases`."""

    def __init__(self, store: Store, lease_ms: int = LEASE_MS) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._ours: set[str] = set()  # Redis knows processes: two images of one process share layers as well

    @asynccontextmanager
    async def held(self, what: str) -> AsyncIterator[bool]:
        """The block is cancelled, and left without an error, where the lease is lost or cannot be renewed in time."""
        duty = f"{DUTY[:-1]}:{what}"
        if what in self._ours:
            yield False
            return
        self._ours.add(what)
        try:
            async with self._held(what, duty) as ours:
                yield ours
        finally:
            self._ours.discard(what)

    @asynccontextmanager
    async def _held(self, what: str, duty: str) -> AsyncIterator[bool]:
        if await self._store.hold(duty, lease_ms=self._lease_ms) != "held":
            yield False
            return
        lost = asyncio.Event()
        block = asyncio.current_task()
        assert block is not None
        renewing = asyncio.create_task(self._renew(duty, block, lost), name=f"lease of {what}")
        try:
            yield True
        except asyncio.CancelledError:
            if not lost.is_set() or block.uncancel() > 0:
                raise
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            if not lost.is_set():
                await asyncio.shield(self._store.resign(duty))

    async def _renew(self, duty: str, block: "asyncio.Task[object]", lost: asyncio.Event) -> None:
        while not lost.is_set():
            await asyncio.sleep(self._lease_ms / 3000)
            try:
                async with asyncio.timeout(self._lease_ms / 2000):
                    held = await self._store.hold(duty, lease_ms=self._lease_ms) == "held"
            except (TimeoutError, RedisUnavailable):
                held = False
            if not held:
                lost.set()
                block.cancel()
