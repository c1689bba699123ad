"""The one rule of time for what is scored: CPU time counts, and wall time is a distant stop.

A slow or crowded node must not turn a right answer into a wrong one. What was stopped at the wall while it was ready
and waited for a CPU is run once more, with far more wall time, and then counts. Programs, forks of scorers and the
tests of repositories are all under it.
"""

import math
import os
import time
from pathlib import Path
from typing import NamedTuple, Self

from workers.handler import Eval, NodeCrowded

WALL = 4  # times the limit of CPU time
PATIENT_WALL = 40  # in the second run
OF_THE_BUDGET = 0.8  # of EVAL's, for all that is run; the rest is for us
FAIR = 0.5  # of that: what had so much of it was not cut short by slow images and sandboxes
_ENDING_S = 30.0  # at most, for what is late to be ended and to tell what it did
_STARVED = 0.25  # of the wall time, ready and without a CPU
_CROWDED = 0.5  # of the time, in which something on the node waited for a CPU
_PRESSURE = Path("/proc/pressure/cpu")


def was_starved(*, waited_s: float, wall_s: float) -> bool:
    """True of a run that was stopped at the wall, if the node, not the run, may be why.

    `waited_s`: how long its processes were ready and had no CPU, in `wall_s` seconds.
    """
    return waited_s > _STARVED * wall_s


class AskTime:
    """Time of the asks about one text: until when they may take it, and what they took."""

    def __init__(self, end: float = math.inf, ending_s: float = _ENDING_S) -> None:
        """`end`: a `time.monotonic`. `ending_s`: as `EvalClock.ending_s`."""
        self.end = end
        self.ending_s = ending_s
        self.had_s = self.own_s = 0.0  # taken by all asks; the wall time of one's own limits
        self.starved = False  # one of them waited for a CPU
        self.cut = False  # the last one, by `end`

    @property
    def left_s(self) -> float:
        return max(0.0, self.end - time.monotonic())


class EvalClock(NamedTuple):
    """EVAL's time on this node, from its beginning."""

    began: float  # `time.monotonic`, as `end`
    end: float
    waited_us: int | None  # the node's own count at the beginning
    repeated: bool

    @classmethod
    def of(cls, context: Eval) -> Self:
        now = time.monotonic()
        return cls(now, now + context.job.limits.eval_ms / 1000 * OF_THE_BUDGET, _waited_us(), context.repeated)

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    def asks(self, share: float = 1.0) -> AskTime:
        """Time for one text, out of so much of what there was for all."""
        return AskTime(self.began + share * (self.end - self.began), self.ending_s)

    @property
    def ending_s(self) -> float:
        """Time for what is late to end, out of the part of EVAL's budget that is for us."""
        return min(_ENDING_S, (self.end - self.began) * (1 / OF_THE_BUDGET - 1) / 4)

    @property
    def wall(self) -> int:
        """Wall time that a run may take, in multiples of its limit of CPU time."""
        return PATIENT_WALL if self.repeated else WALL

    def cut(self, what: str, *, had_s: float, own_s: float, starved: bool = False) -> None:
        """Returns if what came too late is to blame for it itself.

        Raises `NodeCrowded` where it had neither the wall time of its own limits, `own_s`, nor a fair part of EVAL's:
        images, sandboxes and the node took the rest. Once also for what was starved, or on a node with more work than
        CPUs.
        """
        if had_s < min(own_s, FAIR * (self.end - self.began)):
            when = f"when it had run for {had_s:.0f} s; the rest went elsewhere"
            raise NodeCrowded(f"{what}: EVAL's time was over {when}")
        if not self.repeated and (starved or self._crowded()):
            raise NodeCrowded(f"{what}, on a node whose CPUs are not enough; it is tried once more")

    def _crowded(self) -> bool:
        now_us = _waited_us()
        if now_us is None or self.waited_us is None:
            return os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
        return (now_us - self.waited_us) / 1e6 > _CROWDED * (time.monotonic() - self.began)


def _waited_us() -> int | None:
    """For how long something on this node has waited for a CPU, since it was started; None where nobody counts."""
    try:
        return int(_PRESSURE.read_text().splitlines()[0].rpartition("total=")[2])
    except (OSError, ValueError, IndexError):
        return None
