"""Estimates from n samples of each task, and how sure they are.

Samples of one task are not independent, tasks are taken to be: each estimate is the mean of one value a task, and its
standard error is that of the tasks' values, sqrt(sum((v - mean)^2) / (m (m - 1))) for m tasks. That is the standard
error clustered by task of Miller, "Adding Error Bars to Evals" (arXiv 2411.00640, section 2.2), for clusters of equal
weight, with the factor m / (m - 1) for few of them. It counts what differs between samples of one task, too, since
that is in each task's value.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from prorl_mq.evaluation import student

LEVEL: Final = 0.95
LARGE: Final = 1e60  # up to here fourth powers are floats


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over tasks with its standard error and its 95 % interval; both null for fewer than two tasks, the
    interval also where all rewards are equal.
    """

    value: float
    se: float | None = None
    low: float | None = None
    high: float | None = None
    tasks: int = 0


def pass_at(n: int, solved: int, k: int) -> float:
    """The chance that at least one of k samples solves a task, where `solved` of n did: 1 - C(n - c, k) / C(n, k).

    Without bias for k <= n (Chen et al., arXiv 2107.03374, section 2.1). Raises `ValueError` for other k.
    """
    _check(n, solved, k)
    every = math.comb(n, k)
    return (every - math.comb(n - solved, k)) / every  # of whole numbers: 1 - 9 / 10 would be less than 0.1


def pass_all(n: int, solved: int, k: int) -> float:
    """The chance that all of k samples solve a task (pass^k): C(c, k) / C(n, k).

    Without bias for k <= n (Yao et al., tau-bench, arXiv 2406.12045, section 3). Raises `ValueError` for other k.
    """
    _check(n, solved, k)
    return math.comb(solved, k) / math.comb(n, k)


def mean(values: Sequence[float], *, samples: int | None = None) -> Estimate | None:
    """The mean of the tasks' values; None without any. With `samples`, their number, the values are shares from 0 to 1
    and the interval is `share_interval`'s; else it is mean ± t(m - 1) se.
    """
    tasks = len(values)
    if not tasks:
        return None
    value, se = spread(values)
    if tasks == 1:
        return Estimate(value=value, tasks=1)
    return _with_interval(value, se, tasks, tasks - 1, samples)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """The mean of values and its standard error, which is 0 for one of them, and exactly 0 for equal ones.

    So have rewards whose sum or squares no float can hold.
    """
    if min(values) == max(values):
        return float(values[0]), 0.0
    scale = _scale(values)
    values, count = [each / scale for each in values], len(values)
    middle = math.fsum(values) / count
    se = math.sqrt(math.fsum((each - middle) ** 2 for each in values) / (count * (count - 1)))
    return middle * scale, se * scale


def weighted(parts: Sequence[tuple[float, Estimate]], *, samples: int | None = None) -> Estimate | None:
    """The mean of several sets' estimates by weight; None without a weight. Sets are independent of each other, so
    se^2 = sum(w^2 se^2) / sum(w)^2, with Satterthwaite's degrees of freedom.
    """
    parts = [(weight, each) for weight, each in parts if weight > 0]
    total = math.fsum(weight for weight, _ in parts)
    if not parts:
        return None
    scale = _scale([each.value for _, each in parts])
    value = math.fsum(weight * (each.value / scale) for weight, each in parts) / total * scale
    tasks = sum(each.tasks for _, each in parts)
    shares = [(weight / total * each.se, each.tasks - 1) for weight, each in parts if each.se is not None]
    if len(shares) < len(parts):
        return Estimate(value=value, tasks=tasks)
    se, df = combined(shares)
    return _with_interval(value, se, tasks, df, samples)


def combined(parts: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """The standard error of a sum of independent parts, each with its own and its degrees of freedom, and those of the
    sum (Satterthwaite 1946): (sum s^2)^2 / sum(s^4 / df).
    """
    scale = _scale([se for se, _ in parts])
    variance = math.fsum((se / scale) ** 2 for se, _ in parts)
    fourth = math.fsum((se / scale) ** 4 / df for se, df in parts)
    return math.sqrt(variance) * scale, variance**2 / fourth if fourth > 0 else float(sum(df for _, df in parts))


def share_interval(value: float, se: float, tasks: int, df: float, samples: int) -> tuple[float, float]:
    """Wilson's interval of a share with the number of independent samples that its standard error stands for,
    p (1 - p) / se^2, at most as many as there are (Franco et al. 2019, doi 10.1093/jssam/smy019), and t for z.

    It stays within 0 and 1. Where all tasks have one value the standard error is 0 and says nothing: then each task
    counts once, as if all of its samples were one, and z is used.
    """
    number = float(tasks) if se == 0 else min(value * (1 - value) / se**2, float(samples))
    if number <= 0:
        return value, value
    t2 = student.quantile((1 + LEVEL) / 2, math.inf if se == 0 else df) ** 2
    middle = (value + t2 / (2 * number)) / (1 + t2 / number)
    half = math.sqrt(t2 * (value * (1 - value) / number + t2 / (4 * number**2))) / (1 + t2 / number)
    return max(0.0, min(value, middle - half)), min(1.0, max(value, middle + half))


def _scale(values: Sequence[float]) -> float:
    """1 for values of a usual size, else their size: what is computed of them is computed of parts of it."""
    size = max(map(abs, values))
    return size if size > LARGE else 1.0


def _with_interval(value: float, se: float, tasks: int, df: float, samples: int | None) -> Estimate:
    low: float | None
    high: float | None
    if samples is not None:
        low, high = share_interval(min(max(value, 0.0), 1.0), se, tasks, df, samples)
    elif se == 0:
        low = high = None  # equal values say nothing of how much others differ
    else:
        half = student.quantile((1 + LEVEL) / 2, df) * se
        low, high = value - half, value + half
    return Estimate(value=value, se=se, low=low, high=high, tasks=tasks)


def _check(n: int, solved: int, k: int) -> None:
    if not (1 <= k <= n and 0 <= solved <= n):
        raise ValueError(f"no estimate at k = {k} from {solved} of {n} samples")
