"""The signals that end a worker: SIGTERM and SIGINT drain it; SIGUSR1 does too, and asks to be run again."""

import asyncio
import signal
from types import TracebackType
from typing import Final, Protocol, Self

AGAIN: Final = 75  # EX_TEMPFAIL: with Slurm's RequeueExit=75 the task goes back into the queue


class Drained(Protocol):
    """What can be drained."""

    def drain(self) -> None: ...


class Draining:
    """While its context lasts. Until a worker is there to be drained, a signal ends the start."""

    def __init__(self) -> None:
        self.asked = False
        self.exit_code = 0
        self._worker: Drained | None = None
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain, 0)
        loop.add_signal_handler(signal.SIGUSR1, self._drain, AGAIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            asyncio.get_running_loop().remove_signal_handler(number)

    def applies_to(self, worker: Drained) -> None:
        """From now on signals drain the worker."""
        self._worker = worker

    def _drain(self, exit_code: int) -> None:
        self.asked = True
        self.exit_code = self.exit_code or exit_code
        if self._worker is not None:
            self._worker.drain()
        elif self._task is not None:
            self._task.cancel()
