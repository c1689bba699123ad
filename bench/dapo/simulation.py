"""DAPO batches of one run in memory, decided by the project's own formulas (`prorl_mq.rules.dapo`).

It stands for the two duties and their scripts where many runs are needed; `real_queue` shows that they agree.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.dapo.fleet import Job
from bench.dapo.local_queue import LocalQueue
from bench.dapo.workload import Workload
from prorl_mq.rules.dapo import BatchProgress, Standing, spread, standing, to_draw
from prorl_mq.schema.dapo import Dapo, Spread, Surplus
from prorl_mq.schema.messages import Stage


@dataclass
class Playing:
    """A drawn group without a verdict."""

    rewards: dict[int, float] = field(default_factory=dict)  # of the samples that have ended
    parked: bool = False


class Simulation:
    """`restart`: what a full batch leaves begins again in the next one."""

    def __init__(self, work: Workload, prompts: Sequence[int], *, restart: bool = False) -> None:
        self.work, self.restart = work, restart
        self.accepted: list[list[int]] = []  # of each batch, in the order of acceptance
        self.filtered: list[int] = []
        self.left: list[int] = []  # stopped for nothing; more than once if it began again
        self.is_open = False
        self.begun: list[list[int]] = []  # of each batch, in the order of their draw
        self._dapo = Dapo(target_groups=1)
        self._queue = LocalQueue()
        self._reservoir = deque(prompts)
        self._playing: dict[int, Playing] = {}  # in the order of their draw
        self._filtered = self._drawn = 0  # of this batch
        self._stopped: list[Job] = []

    @property
    def playing(self) -> list[int]:
        return list(self._playing)

    async def open(self, dapo: Dapo) -> None:
        """The run's next batch. What is carried over is judged first."""
        self._dapo, self.is_open = dapo, True
        self._filtered = self._drawn = 0
        self.accepted.append([])
        self.begun.append([])
        for group in [group for group, each in self._playing.items() if each.parked]:
            self._playing[group].parked = False
            self._judge(group)
        self._fill()

    async def take(self, stage: Stage, free: int) -> Sequence[Job]:
        return self._queue.take(stage, free)

    async def done(self, job: Job, stage: Stage) -> Sequence[Job]:
        self._stopped = []
        if self._queue.done(job, stage) and self._has_ended(job):
            self._judge(job.group)
            self._fill()
        return self._stopped

    def _has_ended(self, job: Job) -> bool:
        """A sample has ended; whether its group has with it."""
        playing = self._playing[job.group]
        playing.rewards[job.sample] = self.work.reward(*job)
        return len(playing.rewards) == self.work.n

    def _judge(self, group: int) -> None:
        playing = self._playing[group]
        if not self.is_open:
            playing.parked = True  # the next batch judges it
        elif spread(list(playing.rewards.values())) <= self._above():
            del self._playing[group]
            self.filtered.append(group)
            self._filtered += 1
        elif self._dapo.surplus is Surplus.ORDERED:
            playing.parked = True
            self._stand(group)
        else:
            self._accept(group)

    def _stand(self, group: int) -> None:
        found = self._standing()
        if group in found.accept:
            self._accept(group)
        elif group in found.reject:
            self._leave([group])

    def _standing(self) -> Standing[int]:
        now = [(group, each.parked) for group, each in self._playing.items()]
        return standing(now, accepted=len(self.accepted[-1]), target=self._dapo.target_groups)

    def _accept(self, group: int) -> None:
        del self._playing[group]
        self.accepted[-1].append(group)
        if len(self.accepted[-1]) == self._dapo.target_groups:
            self.is_open = False
            if self._dapo.surplus is not Surplus.CARRY:
                self._leave(list(self._playing))

    def _fill(self) -> None:
        while self.is_open and self._dapo.surplus is Surplus.ORDERED:
            found = self._standing()
            self._leave(found.reject)
            if not found.accept:
                break
            self._accept(found.accept[0])
        if self.is_open:
            for _ in range(to_draw(self._dapo, self._progress())):
                group = self._reservoir.popleft()
                self._playing[group] = Playing()
                self._queue.admit(group, self.work.n)
                self.begun[-1].append(group)
                self._drawn += 1

    def _progress(self) -> BatchProgress:
        parked = sum(each.parked for each in self._playing.values())
        return BatchProgress(
            accepted=len(self.accepted[-1]), filtered=self._filtered, parked=parked, in_play=len(self._playing),
            drawn=self._drawn, waiting=len(self._reservoir),
        )  # fmt: skip

    def _leave(self, groups: Sequence[int]) -> None:
        for group in groups:
            self._stop(group)
            del self._playing[group]
            self.left.append(group)
        if self.restart:
            self._reservoir.extendleft(reversed(groups))

    def _stop(self, group: int) -> None:
        done = self._playing[group].rewards
        jobs = [Job(group, sample) for sample in range(self.work.n) if sample not in done]
        self._stopped += self._queue.withdraw(jobs) if jobs else []

    def _above(self) -> float:
        rule = self._dapo.filter
        assert isinstance(rule, Spread)
        return rule.above
