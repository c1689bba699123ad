"""Two policies on the same tasks: what one solves more often than the other, and how sure that is.

Each task that both have gives one difference, so that what makes a task hard for both is in neither (Miller, arXiv
2411.00640, section 4.2).
"""

import itertools
import math
import random
from collections.abc import Sequence
from typing import Final

import msgspec

from prorl_mq.evaluation import student
from prorl_mq.evaluation.statistics import LEVEL, combined, spread

EXACT: Final = 16  # differences of which each choice of signs is looked at
DRAWS: Final = 20_000  # of signs at random, where there are more
SEED: Final = 20_261_124
POWER: Final = 0.8
NOISE: Final = 1e-12  # of the sum of all sizes; sums that differ by less are equal


class PairedTest(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of two policies. `se`, the interval and `found` are null where a set has one task only; the
    interval and `found` also where all differences of each set are equal: that says nothing of how much others vary.
    """

    difference: float  # the other's share subtracted from ours
    se: float | None
    low: float | None
    high: float | None
    wins: int  # tasks on which ours is better
    losses: int
    ties: int
    permutation_p: float  # two-sided: how often signs at random make a difference as large
    permutation: str  # exact, or the number of draws and their seed
    sign_p: float  # two-sided, exact, of wins against losses
    found: float | None  # the smallest true difference that is significant in 80 % of such comparisons


def compare(sets: Sequence[tuple[float, Sequence[float]]]) -> PairedTest | None:
    """Compares by differences of tasks in sets, each set with its weight. None without any task.

    The standard error is that of the paired differences within each set, combined as `statistics.weighted` does. The
    smallest difference found is (t(0.975) + t(0.8)) se, the usual formula of a paired test's power.
    """
    sets = [(weight, list(values)) for weight, values in sets if values and weight > 0]
    total = math.fsum(weight for weight, _ in sets)
    if not sets:
        return None
    # Each task's part of the difference: their sum is the weighted mean of the sets' means.
    parts = [weight / total / len(values) * value for weight, values in sets for value in values]
    values = [value for _, each in sets for value in each]
    wins, losses = sum(value > 0 for value in values), sum(value < 0 for value in values)
    p, how = permutation(parts)
    difference = math.fsum(parts)
    se = df = None
    if all(len(each) > 1 for _, each in sets):
        se, df = combined([(weight / total * spread(each)[1], len(each) - 1) for weight, each in sets])
    t = student.quantile((1 + LEVEL) / 2, df) if df else 0.0
    return PairedTest(
        difference=difference,
        se=se,
        low=difference - t * se if se else None,
        high=difference + t * se if se else None,
        wins=wins,
        losses=losses,
        ties=len(values) - wins - losses,
        permutation_p=p,
        permutation=how,
        sign_p=sign(wins, losses),
        found=(t + student.quantile(POWER, df)) * se if se and df else None,
    )


def permutation(parts: Sequence[float]) -> tuple[float, str]:
    """The sign-flip test of differences that would be as likely with the other sign: p, and how it was found.

    All choices of signs up to 16 differences that are not 0; else 20,000 at random with a fixed seed, and p is
    (as large + 1) / (draws + 1) (Phipson and Smyth 2010), which is never too small.
    """
    parts = [part for part in parts if part]
    if not parts:
        return 1.0, "exact"
    least = abs(math.fsum(parts)) - NOISE * math.fsum(map(abs, parts))
    if len(parts) <= EXACT:
        # One sign is fixed: the other half of the choices is its mirror image.
        choices = itertools.product((1, -1), repeat=len(parts) - 1)
        large = sum(
            abs(parts[0] + math.fsum(s * each for s, each in zip(signs, parts[1:], strict=True))) >= least
            for signs in choices
        )
        return large / 2 ** (len(parts) - 1), "exact"
    draw = random.Random(SEED)  # noqa: S311 - a repeatable draw is wanted
    everything = math.fsum(parts)
    large = 0
    for _ in range(DRAWS):
        bits = draw.getrandbits(len(parts))
        flipped = sum(part for place, part in enumerate(parts) if bits >> place & 1)
        large += abs(everything - 2 * flipped) >= least
    return (large + 1) / (DRAWS + 1), f"{DRAWS} draws, seed {SEED}"


def sign(wins: int, losses: int) -> float:
    """The exact two-sided sign test: the chance of so uneven a split of wins and losses by a fair coin."""
    number, least = wins + losses, min(wins, losses)
    tail = sum(math.comb(number, each) for each in range(least + 1))
    return float(min(1.0, 2 * tail / 2**number))
