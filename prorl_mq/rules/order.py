"""The order of a run's backlog: one sorted set, with evaluation below zero and training above.

A group's score is its purpose's base plus the time of its submission, or of its draw from a reservoir, in µs, less ten
minutes for each step of priority. So priority is an advance on waiting time: what was submitted later than that can
never overtake, and nobody starves. A refill has the base alone and stands before all that are new.
"""

from typing import Final

from prorl_mq.schema.messages import Purpose

EVAL_BASE: Final = -(1 << 52)  # sums of it and a time in µs are whole numbers that a double holds exactly
STEP_US: Final = 600 * 1_000_000


def base(purpose: Purpose) -> int:
    return EVAL_BASE if purpose is Purpose.EVAL else 0


def ahead_us(priority: int) -> int:
    """The waiting time that a priority is worth, in microseconds."""
    return priority * STEP_US


def purpose_of(score: float) -> Purpose:
    return Purpose.EVAL if score < 0 else Purpose.TRAIN
