"""Three first-in-first-out queues in memory."""

from collections import deque
from collections.abc import Iterable

from bench.dapo.fleet import Job
from prorl_mq.schema.messages import Stage

NEXT = {Stage.INIT: Stage.RUN, Stage.RUN: Stage.EVAL}


class LocalQueue:
    def __init__(self) -> None:
        self._waiting: dict[Stage, deque[Job]] = {stage: deque() for stage in Stage}
        self._running: set[Job] = set()

    def admit(self, group: int, n: int) -> None:
        self._waiting[Stage.INIT].extend(Job(group, sample) for sample in range(n))

    def take(self, stage: Stage, free: int) -> list[Job]:
        queue = self._waiting[stage]
        taken = [queue.popleft() for _ in range(min(free, len(queue)))]
        self._running.update(taken)
        return taken

    def done(self, job: Job, stage: Stage) -> bool:
        """Whether that was its last stage."""
        self._running.remove(job)
        if stage is Stage.EVAL:
            return True
        self._waiting[NEXT[stage]].append(job)
        return False

    def withdraw(self, jobs: Iterable[Job]) -> list[Job]:
        """Takes jobs out, wherever they are; those that run must be stopped."""
        gone = set(jobs)
        for stage, queue in self._waiting.items():
            self._waiting[stage] = deque(job for job in queue if job not in gone)
        stopped = sorted(gone & self._running)
        self._running -= gone
        return stopped
