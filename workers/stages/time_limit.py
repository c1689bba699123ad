"""The end that a scheduler has set for this process: no job is claimed that would probably not end before it."""

import math
from collections import deque
from collections.abc import Iterable
from typing import Final

KEPT: Final = 128  # durations that are remembered
SHARE: Final = 0.95


class TimeLimit:
    """The limit, and what this worker's stage has taken so far. A fresh worker has measured nothing: it claims."""

    def __init__(self, ends_at_ms: int | None) -> None:
        self._ends_at_ms = ends_at_ms
        self._seconds: deque[float] = deque(maxlen=KEPT)

    def took(self, seconds: float) -> None:
        """One job's time in the stage."""
        self._seconds.append(seconds)

    def too_late(self, now_ms: int) -> bool:
        """True if a job that takes as long as 95 of 100 did would outlast the limit."""
        if self._ends_at_ms is None or not self._seconds:
            return False
        return self._ends_at_ms - now_ms < percentile(self._seconds, SHARE) * 1000


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that is not less than `share` of all. Raises `IndexError` where there are none.

    >>> percentile([3.0, 1.0, 2.0], 0.95), percentile(range(1, 101), 0.95)
    (3.0, 95)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
