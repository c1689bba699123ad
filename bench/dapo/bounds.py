"""What the ways of filling batches are held against: synchronous batches, and oracles."""

from collections.abc import Callable, Sequence

from bench.dapo.fleet import Fleet, Job
from bench.dapo.local_queue import LocalQueue
from bench.dapo.workload import Workload
from prorl_mq.schema.messages import Stage


class Given:
    """Everything is there from the start, nothing is drawn later and nothing is stopped."""

    def __init__(self, work: Workload, groups: Sequence[int]) -> None:
        self.work = work
        self.kept: list[int] = []  # informative groups, in the order of their ends
        self._queue = LocalQueue()
        self._open = dict.fromkeys(groups, work.n)
        for group in groups:
            self._queue.admit(group, work.n)

    async def take(self, stage: Stage, free: int) -> Sequence[Job]:
        return self._queue.take(stage, free)

    async def done(self, job: Job, stage: Stage) -> Sequence[Job]:
        if self._queue.done(job, stage):
            self._open[job.group] -= 1
            if not self._open[job.group] and self.work.is_informative(job.group):
                self.kept.append(job.group)
        return []


async def _seconds(work: Workload, groups: Sequence[int], until: Callable[[Given], bool]) -> float:
    given = Given(work, groups)
    fleet = Fleet(given, work)
    await fleet.go_on(lambda: until(given))
    return fleet.now


async def _everything(work: Workload, groups: Sequence[int]) -> float:
    return await _seconds(work, groups, lambda _: False)


async def synchronous(work: Workload, target: int, batches: int) -> tuple[float, int]:
    """Seconds, and prompts used: rounds of `target` groups, each waited for to its last sample, until enough pass.

    What passes beyond the target is thrown away, as everything is that a round does not need.
    """
    seconds, used = 0.0, 0
    for _ in range(batches):
        kept = 0
        while kept < target:
            groups = range(used, used + target)
            seconds += await _everything(work, groups)
            kept += sum(map(work.is_informative, groups))
            used += target
    return seconds, used


async def oracle_carry(work: Workload, target: int, batches: int, prompts: Sequence[int]) -> float:
    """No slot is ever idle: the whole run's prompts are there from the start, and nothing is stopped."""
    return await _seconds(work, prompts, lambda given: len(given.kept) >= target * batches)


async def oracle_ordered(work: Workload, begun: Sequence[Sequence[int]], target: int) -> float:
    """It knows which group will be the last one needed, and starts those up to it at once, and no other.

    `begun`: what was drawn in each batch, in that order.
    """
    seconds = 0.0
    for groups in begun:
        kept = [place for place, group in enumerate(groups) if work.is_informative(group)]
        seconds += await _everything(work, groups[: kept[target - 1] + 1])
    return seconds


async def oracle_cancel(work: Workload, target: int, batches: int, prompts: Sequence[int]) -> float:
    """No slot is ever idle from a batch's start to its end; each batch begins with prompts that nobody has begun."""
    seconds, share = 0.0, len(prompts) // batches
    for number in range(batches):
        mine = prompts[number * share : (number + 1) * share]
        seconds += await _seconds(work, mine, lambda given: len(given.kept) >= target)
    return seconds
