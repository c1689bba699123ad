"""Student's t distribution: its quantiles, without a library for it."""

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Final

STEPS: Final = 200  # of a continued fraction, and of a bisection
TINY: Final = 1e-300
LARGE: Final = 1e6  # degrees of freedom from which the normal distribution is used


@lru_cache(4_096)
def quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p, for 0.5 <= p < 1 and df > 0 degrees of freedom, not necessarily a whole number."""
    if df >= LARGE:
        return NormalDist().inv_cdf(p)
    low, high = 0.0, 1.0
    while cumulative(high, df) < p and high < LARGE:
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if cumulative(middle, df) < p else (low, middle)
    return (low + high) / 2


def cumulative(t: float, df: float) -> float:
    """P(T <= t) for t >= 0: 1 - I(df / 2, 1 / 2; df / (df + t^2)) / 2 with the regularised incomplete beta function
    (Abramowitz and Stegun, 26.7.1).
    """
    return 1.0 - _beta(df / 2, 0.5, df / (df + t * t)) / 2


def _beta(a: float, b: float, x: float) -> float:
    """I(a, b; x), by its continued fraction (Abramowitz and Stegun, 26.5.8) on the side where that converges fast."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's evaluation of 1 / (1 + d1 / (1 + d2 / (1 + ...)))."""
    c, d = 1.0, 1.0 / _apart(1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _apart(1.0 + term * d)
            c = _apart(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def _apart(value: float) -> float:
    """The value, kept apart from 0."""
    return value if abs(value) > TINY else TINY
