"""The signals that ask a process of a scheduler to end: SIGTERM and SIGINT for good, SIGUSR1 to be run again."""

import asyncio
import signal
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

AGAIN: Final = 75  # EX_TEMPFAIL: with Slurm's RequeueExit=75 the task goes back into the queue
_EXIT_CODES: Final = {signal.SIGTERM: 0, signal.SIGINT: 0, signal.SIGUSR1: AGAIN}


class EndSignals(ABC):
    """Caught within this context. `exit_code` is what the process should end with."""

    def __init__(self) -> None:
        self.exit_code = 0

    @abstractmethod
    def on_asked(self) -> None:
        """At each signal, in the event loop."""

    def __enter__(self) -> Self:
        for number, exit_code in _EXIT_CODES.items():
            asyncio.get_running_loop().add_signal_handler(number, self._ask, exit_code)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in _EXIT_CODES:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _ask(self, exit_code: int) -> None:
        self.exit_code = self.exit_code or exit_code
        self.on_asked()
