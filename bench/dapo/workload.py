"""Synthetic prompts with known solve rates, and how long each of their samples takes in each stage.

Stage times are lognormal. Within a prompt RUN times are alike, hard prompts take longer, and right samples are a little
shorter than wrong ones: without such ties no choice by time could show as a bias.
"""

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from prorl_mq.rules.dapo import spread
from prorl_mq.schema.messages import Stage

MEAN_S: Mapping[Stage, float] = {Stage.INIT: 20.0, Stage.RUN: 240.0, Stage.EVAL: 40.0}
HARD, ALIKE, RIGHT = 0.5, 0.5, -0.3  # of RUN's logarithm, in units of sigma


class Sample(NamedTuple):
    reward: float
    seconds: Mapping[Stage, float]


class Prompt(NamedTuple):
    solve_rate: float
    samples: tuple[Sample, ...]


class Workload:
    """Prompts 0, 1, 2, ... of one seed. A prompt and its samples are the same whoever asks, whenever."""

    def __init__(self, seed: int, *, sigma: float, n: int = 8) -> None:
        self.seed, self.sigma, self.n = seed, sigma, n
        self.prompt = lru_cache(maxsize=None)(self._prompt)

    def reward(self, group: int, sample: int) -> float:
        return self.prompt(group).samples[sample].reward

    def seconds(self, group: int, sample: int, stage: Stage) -> float:
        return self.prompt(group).samples[sample].seconds[stage]

    def parts(self, groups: Iterable[int]) -> Iterator[tuple[tuple[int, int], Stage]]:
        """Every stage of every sample of some groups."""
        return (((group, sample), stage) for group in groups for sample in range(self.n) for stage in Stage)

    def rewards(self, group: int) -> list[float]:
        return [each.reward for each in self.prompt(group).samples]

    def is_informative(self, group: int) -> bool:
        return spread(self.rewards(group)) > 0

    def _prompt(self, group: int) -> Prompt:
        rng = random.Random(f"{self.seed}:{group}")
        rate = rng.betavariate(0.5, 0.5)
        tie = HARD * (1 - 2 * rate) + ALIKE * rng.gauss(0, 1)
        samples = []
        for _ in range(self.n):
            reward = float(rng.random() < rate)
            own = math.sqrt(1 - HARD**2 / 2 - ALIKE**2)
            run = tie + own * rng.gauss(0, 1) + RIGHT * (reward - 0.5)
            logs = {Stage.INIT: rng.gauss(0, 1), Stage.RUN: run, Stage.EVAL: rng.gauss(0, 1)}
            seconds = {
                stage: MEAN_S[stage] * math.exp(self.sigma * each - self.sigma**2 / 2) for stage, each in logs.items()
            }
            samples.append(Sample(reward, seconds))
        return Prompt(rate, tuple(samples))
