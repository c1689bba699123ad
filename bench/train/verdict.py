"""What several training runs show: a rise, a band for one more run, and whether a disturbed run lies in it. Pure."""

import math
import random
import statistics
from collections.abc import Mapping, Sequence

from bench.plot import Point

FLIPS = 10_000
# Student's t, both sides together 5 %, by degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
Rewards = Mapping[str, float]  # by held-out task


def band(means: Sequence[float]) -> Point:
    """The mean of some runs, and how far off it one more such run is in 5 % of all cases.

    >>> point = band([0.8, 0.9, 1.0])
    >>> round(point.value, 3), round(point.margin, 3)
    (0.9, 0.497)
    """
    if len(means) == 1:
        return Point(means[0], 0.0)
    spread = statistics.stdev(means) * math.sqrt(1 + 1 / len(means))
    return Point(statistics.fmean(means), T_95[len(means) - 2] * spread)


def inside(value: float, of: Point) -> bool:
    """With room for sums in binary.

    >>> inside(0.3, Point(0.1, 0.2)), inside(0.4, Point(0.1, 0.2))
    (True, False)
    """
    return abs(value - of.value) <= of.margin + 1e-9


def differences(before: Sequence[Rewards], after: Sequence[Rewards]) -> list[float]:
    """Of each task the mean over the runs of what it gained. Runs are paired by place, rewards by task.

    >>> differences([{"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 1.0}], [{"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.0}])
    [0.5, -0.5]
    """
    pairs = list(zip(before, after, strict=True))
    return [statistics.fmean(late[task] - early[task] for early, late in pairs) for task in sorted(before[0])]


def chance(gains: Sequence[float]) -> float:
    """How often signs by chance give at least such a mean: a one-sided test by permutation, of 10,000 draws.

    >>> chance([1.0] * 20) < 0.001, chance([1.0, -1.0] * 10) > 0.4
    (True, True)
    """
    dice, found = random.Random(0), math.fsum(gains)
    sizes = [gain for gain in gains if gain]
    at_least = sum(
        math.fsum(size if dice.random() < 0.5 else -size for size in sizes) >= found - 1e-9 for _ in range(FLIPS)
    )
    return (at_least + 1) / (FLIPS + 1)
