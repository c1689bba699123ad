"""Which groups a mode accepts, against those that would pass if everything were waited for.

The reference is another population of the same kind, all of whose prompts are rolled out to their end: two independent
samples, so that the two-sample Kolmogorov-Smirnov test applies as it stands.
"""

import bisect
import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from bench.dapo.fleet import SLOTS, Fleet
from bench.dapo.modes import MODES, play
from bench.dapo.simulation import Simulation
from bench.dapo.workload import Workload
from prorl_mq.schema.messages import Stage

SIGNIFICANCE = 0.01
FEATURES = ("solve rate", "reward", "length")  # of a prompt; means over a group's samples
REFERENCE_SEED = 1_000_000  # added to the seed


class Size(NamedTuple):
    """How much is sampled. Few groups in play, against all that are accepted, keep the run's end out of its figures."""

    prompts: int = 20_000
    target: int = 64
    n: int = 8
    slots: Mapping[Stage, int] = SLOTS


class Selected(NamedTuple):
    """What a mode drew, and which of it was accepted."""

    drawn: Sequence[int]
    accepted: Sequence[int]


def workload(seed: int, size: Size) -> Workload:
    return Workload(seed, sigma=1.0, n=size.n)


async def select(mode_name: str, work: Workload, size: Size) -> Selected:
    """Full batches, one after the other, until the prompts are used up."""
    mode = MODES[mode_name]
    simulation = Simulation(work, range(size.prompts), restart=mode.restart)
    fleet = Fleet(simulation, work, size.slots)
    full = await play(fleet, simulation, mode.dapo(size.target, 1.5), size.prompts)
    whole = simulation.accepted[: len(full)]  # without the one that ran short of prompts
    return Selected(list(chain.from_iterable(simulation.begun)), list(chain.from_iterable(whole)))


def everything(work: Workload, size: Size) -> list[int]:
    """The groups that pass when every prompt is rolled out to its end."""
    return [group for group in range(size.prompts) if work.is_informative(group)]


def features(work: Workload, groups: Iterable[int]) -> dict[str, list[float]]:
    """Of each group. Length is the mean logarithm of RUN's seconds, to which tokens are proportional."""
    found: dict[str, list[float]] = {name: [] for name in FEATURES}
    samples = range(work.n)
    for group in groups:
        found["solve rate"].append(work.prompt(group).solve_rate)
        found["reward"].append(statistics.fmean(work.reward(group, sample) for sample in samples))
        found["length"].append(statistics.fmean(math.log(work.seconds(group, sample, Stage.RUN)) for sample in samples))
    return found


class Difference(NamedTuple):
    """Between an accepted and a reference sample of one feature."""

    shift: float  # of the mean, in standard deviations of the reference
    margin: float  # of the shift: 1.96 standard errors
    distance: float  # Kolmogorov-Smirnov
    p: float


def compare(accepted: Sequence[float], reference: Sequence[float]) -> Difference:
    """The two-sample test, with the asymptotic distribution."""
    deviation = statistics.stdev(reference)
    shift = (statistics.fmean(accepted) - statistics.fmean(reference)) / deviation
    error = math.sqrt(statistics.variance(accepted) / len(accepted) + deviation**2 / len(reference)) / deviation
    distance = _distance(sorted(accepted), sorted(reference))
    scale = math.sqrt(len(accepted) * len(reference) / (len(accepted) + len(reference)))
    return Difference(shift, 1.96 * error, distance, kolmogorov(scale * distance))


def kolmogorov(value: float) -> float:
    """The chance of a larger scaled distance between samples of one distribution.

    >>> round(kolmogorov(1.358), 3), round(kolmogorov(1.628), 3), kolmogorov(0.1)
    (0.05, 0.01, 1.0)
    """
    if value < 0.2:
        return 1.0
    total = sum((-1) ** (k - 1) * math.exp(-2 * (k * value) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, 2 * total))


def _distance(first: Sequence[float], second: Sequence[float]) -> float:
    """The largest difference of two empirical distribution functions; both samples are sorted."""
    return max(
        abs(bisect.bisect_right(first, each) / len(first) - bisect.bisect_right(second, each) / len(second))
        for each in chain(first, second)
    )


def power(reference: Sequence[float], size: int, shift: float, *, draws: int, seed: int) -> float:
    """How often the test finds a shift of so many standard deviations between two samples of these values."""
    rng = random.Random(seed)
    by = shift * statistics.stdev(reference)
    found = 0
    for _ in range(draws):
        moved = [each + by for each in rng.choices(reference, k=size)]
        found += compare(moved, rng.choices(reference, k=size)).p < SIGNIFICANCE
    return found / draws


def shares(work: Workload, selected: Selected, parts: int = 10) -> list[float]:
    """Of the drawn groups that would pass, those accepted, by tenths of their length, over the share of all."""
    drawn = dict.fromkeys(selected.drawn)  # once each: restarts draw a group again
    passing = [group for group in drawn if work.is_informative(group)]
    length = features(work, passing)["length"]
    ordered = [group for _, group in sorted(zip(length, passing, strict=True))]
    accepted = set(selected.accepted)
    overall = len(accepted) / len(ordered)
    cuts = [len(ordered) * part // parts for part in range(parts + 1)]
    return [
        sum(group in accepted for group in ordered[first:last]) / (last - first) / overall
        for first, last in pairwise(cuts)
    ]
