"""The signals that end a worker drain it."""

import asyncio
from typing import Protocol, Self

from prorl_mq.process.signals import EndSignals


class Drained(Protocol):
    """What can be drained."""

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
