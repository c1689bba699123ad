"""Lag of an event loop: the time by which a timer of its own is late. A process whose loop stays blocked ends itself.

Nothing else would end it: its heartbeat has a thread of its own, so its jobs stay its own, and no budget of theirs can
stop what never gives the loop back.
"""

import asyncio
import logging
import os
import sys
import threading
import traceback
from typing import Final

from prometheus_client import CollectorRegistry, Histogram

from prorl_mq.clock import monotonic

EVERY_S: Final = 0.5
BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 2, 10)
BLOCKED_S: Final = 30.0  # a job that computes for less is seen in the lag
WATCH_S: Final = 5.0
BLOCKED: Final = "the event loop has been blocked for %.0f s: no job of this process advances until this returns:\n%s"
ENDS_S: Final = 300.0
EXIT_CODE: Final = 70  # EX_SOFTWARE
ENDS: Final = "the event loop has been blocked for %.0f s: this process ends, so that others take its work"
log = logging.getLogger("prorl_mq.process.loop_lag")


class LoopLag:
    """Measured twice a second. Whoever registers it runs it too."""

    def __init__(self, registry: CollectorRegistry) -> None:
        about = "By how much a timer of the event loop came too late."
        self._seen = Histogram("prorl_loop_lag_seconds", about, buckets=BUCKETS, registry=registry)
        self._due = 0.0

    async def run(self) -> None:
        """Measures until it is cancelled. A thread watches meanwhile, which a blocked loop does not stop."""
        over = threading.Event()
        self._due = monotonic() + EVERY_S
        watch = threading.Thread(target=self._watch, args=(threading.get_ident(), over), name="loop watch", daemon=True)
        watch.start()
        try:
            while True:
                self._due = monotonic() + EVERY_S
                await asyncio.sleep(EVERY_S)
                self._seen.observe(max(0.0, monotonic() - self._due))
        finally:
            over.set()

    def _watch(self, thread: int, over: threading.Event) -> None:
        """Says once of each block where the loop's thread is, and ends the process if it lasts."""
        seen, looks = 0.0, 0
        while not over.wait(WATCH_S):
            due, frame = self._due, sys._current_frames().get(thread)  # noqa: SLF001 the documented way to look
            looks = looks + 1 if due == seen and due < monotonic() else 0  # a pause of the whole process is one look
            seen, blocked_s = due, looks * WATCH_S
            if frame is not None and blocked_s - WATCH_S < BLOCKED_S <= blocked_s:
                log.error(BLOCKED, blocked_s, "".join(traceback.format_stack(frame)))
            if blocked_s >= ENDS_S:
                log.critical(ENDS, blocked_s)
                logging.shutdown()
                os._exit(EXIT_CODE)
