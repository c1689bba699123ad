"""The signals that end a worker drain it, and the time by which it has ended."""

import asyncio
import logging
import os
import threading
from typing import Final, Protocol, Self

from prorl_mq.process.signals import EndSignals
from workers.process.jobs import STOP_S

log = logging.getLogger("workers")

EXIT_S: Final = 5.0  # for what follows when no job is left: sandboxes, the last words to Redis


class Drained(Protocol):
    """Anything that can be drained."""

    def drain(self) -> None: ...


class Draining(EndSignals):
    """While its context lasts. Until a worker is there to be drained, a signal ends the start."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = False
        self._worker: Drained | None = None
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        return super().__enter__()

    def applies_to(self, worker: Drained) -> None:
        """From now on signals drain the worker."""
        self._worker = worker

    def on_asked(self) -> None:
        self.asked = True
        if self._worker is not None:
            self._worker.drain()
        elif self._task is not None:
            self._task.cancel()

    def within(self, grace_ms: int) -> None:
        """Ends the process at last if its drain, which begins now, does not: a handler may ignore its cancel, or hold
        a thread. Its leases end by themselves. The bound is the grace time and `STOP_S + EXIT_S`, 20 seconds.
        """
        bound_s = grace_ms / 1000 + STOP_S + EXIT_S
        timer = threading.Timer(bound_s, self._end, (bound_s,))
        timer.daemon = True
        timer.start()

    def _end(self, bound_s: float) -> None:
        log.error("the worker has not ended %.0f s after it was told to: it exits, its leases end its jobs", bound_s)
        logging.shutdown()
        os._exit(self.exit_code or 1)
