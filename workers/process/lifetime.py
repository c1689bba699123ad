"""The end of a worker: the signals that drain it, Slurm's account of its process, and the limit that this has set."""

import asyncio
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Protocol, Self

import msgspec

from prorl_mq.process.signals import EndSignals
from workers.process.jobs import STOP_S

log = logging.getLogger("workers")

EXIT_S: Final = 5.0  # for what follows when no job is left: sandboxes, the last words to Redis
KEPT: Final = 128  # durations of jobs that are remembered
SHARE: Final = 0.95


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


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a Slurm job. `task` is `ARRAY_TASK`, or the job's id where there is no array."""

    task: str
    restarts: int = 0
    ends_at_ms: int | None = None

    def worker_name(self, stage: str, node: str, pid: int) -> str:
        """Unlike every other process: a task that runs twice at once differs in its restarts.

        >>> Allocation(task="17_3", restarts=1).worker_name("run", "n2", 4711)
        'run-17_3.1@n2-4711'
        """
        return f"{stage}-{self.task}.{self.restarts}@{node}-{pid}"


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """None outside of Slurm. The id of the job itself is no help: an array's last task has that of the array."""
    job = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    if not job:
        return None
    index = environ.get("SLURM_ARRAY_TASK_ID")
    ends_at_s = environ.get("PRORL_ENDS_AT") or environ.get("SLURM_JOB_END_TIME")
    return Allocation(
        task=f"{job}_{index}" if index else job,
        restarts=int(environ.get("SLURM_RESTART_COUNT") or 0),
        ends_at_ms=int(ends_at_s) * 1000 if ends_at_s else None,
    )


class TimeLimit:
    """The end that a scheduler has set: no job is claimed that would probably not end before it.

    A fresh worker has measured nothing: it claims.
    """

    def __init__(self, ends_at_ms: int | None) -> None:
        self._ends_at_ms = ends_at_ms
        self._seconds: deque[float] = deque(maxlen=KEPT)

    def took(self, seconds: float) -> None:
        """One job's time in the stage."""
        self._seconds.append(seconds)

    def too_late(self, now_ms: int) -> bool:
        """True if a job that takes as long as 95 of 100 did would outlast the limit."""
        if self._ends_at_ms is None or not self._seconds:
            return False
        return self._ends_at_ms - now_ms < percentile(self._seconds, SHARE) * 1000


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that is not less than `share` of all. Raises `IndexError` where there are none.

    >>> percentile([3.0, 1.0, 2.0], 0.95), percentile(range(1, 101), 0.95)
    (3.0, 95)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
