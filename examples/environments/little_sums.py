"""An environment of the package verifiers, as its authors write them: tasks, and how they score."""

import re
from collections.abc import Iterator

import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: int


class SumTask(vf.Task[Sum]):
    @vf.reward(weight=0.9)
    async def right(self, trace: vf.Trace) -> float:
        numbers = re.findall(r"-?\d+", trace.last_reply or "")
        return float(bool(numbers) and int(numbers[-1]) == self.data.answer)

    @vf.reward(weight=0.1)
    async def brief(self, trace: vf.Trace) -> float:
        return float(0 < len(trace.last_reply or "") <= 40)


class Config(vf.TasksetConfig):
    largest: int = 9


class LittleSums(vf.Taskset[SumTask, Config]):
    def load(self) -> Iterator[SumTask]:
        for first in range(1, self.config.largest + 1):
            data = Sum(prompt=f"What is {first} + 4?", system_prompt="Answer with the number.", answer=first + 4)
            yield SumTask(data, self.config.task)


__all__ = ["LittleSums"]
