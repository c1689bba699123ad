"""Lag of an event loop: the time by which a timer of its own is late."""

import asyncio
from typing import Final

from prometheus_client import CollectorRegistry, Histogram

EVERY_S: Final = 0.5
BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 2, 10)


class LoopLag:
    """Measured twice a second. Whoever registers it runs it too."""

    def __init__(self, registry: CollectorRegistry) -> None:
        about = "By how much a timer of the event loop came too late."
        self._seen = Histogram("prorl_loop_lag_seconds", about, buckets=BUCKETS, registry=registry)

    async def run(self) -> None:
        """Measures until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._seen.observe(max(0.0, loop.time() - due))
