"""Virtual workers: slots of three stages on a virtual clock. What they work for is the real queue or a simulation."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple, Protocol

from bench.dapo.workload import Workload
from prorl_mq.schema.messages import Stage

SLOTS: Mapping[Stage, int] = {Stage.INIT: 64, Stage.RUN: 256, Stage.EVAL: 64}


class Job(NamedTuple):
    """A sample of a prompt."""

    group: int
    sample: int


class System(Protocol):
    """What hands jobs out. Its own work takes no time on the virtual clock."""

    async def take(self, stage: Stage, free: int) -> Sequence[Job]:
        """Jobs to begin now, at most `free`."""
        ...

    async def done(self, job: Job, stage: Stage) -> Sequence[Job]:
        """A stage of a job has ended; which running jobs must stop now."""
        ...


class Running(NamedTuple):
    stage: Stage
    since: float
    number: int


class Fleet:
    """`spent`: seconds of slots by group, those of stopped jobs included."""

    def __init__(self, system: System, work: Workload, slots: Mapping[Stage, int] = SLOTS) -> None:
        self.system, self.work = system, work
        self.now = 0.0
        self.spent: defaultdict[int, float] = defaultdict(float)
        self._free = dict(slots)
        self._running: dict[Job, Running] = {}
        self._ends: list[tuple[float, int, Job]] = []
        self._numbers = count()

    async def go_on(self, until: Callable[[], bool]) -> bool:
        """Works until the condition holds, looked at after every event; false if nothing is left to do before."""
        await self._begin()
        while not until():
            if not self._ends:
                return False
            now, number, job = heapq.heappop(self._ends)
            running = self._running.get(job)
            if running is None or running.number != number:
                continue
            self.now = now
            self._give(job)
            for each in await self.system.done(job, running.stage):
                self._give(each)
            await self._begin()
        return True

    async def _begin(self) -> None:
        for stage in Stage:
            if self._free[stage] > 0:
                for job in await self.system.take(stage, self._free[stage]):
                    number = next(self._numbers)
                    self._running[job] = Running(stage, self.now, number)
                    self._free[stage] -= 1
                    heapq.heappush(self._ends, (self.now + self.work.seconds(*job, stage), number, job))

    def _give(self, job: Job) -> None:
        stage, since, _ = self._running.pop(job)
        self._free[stage] += 1
        self.spent[job.group] += self.now - since
