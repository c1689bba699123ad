"""Evidence that samples are lost for what the policy did: their lengths beside those of their siblings. Pure.

A sample that ends null after RUN, in EVAL, has its length. Within a group, which is one prompt, a loss that has nothing
to do with the policy is as likely to hit a short sample as a long one: the ranks of the lost lengths are then those of
a draw without replacement. The rank sums of all groups of a run, each less its mean, make one normal number (a
stratified Wilcoxon test, van Elteren 1960, with equal weights and variances corrected for ties).
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from prorl_mq.schema.lifecycle import COUNTS, REFILLED
from prorl_mq.schema.messages import SampleRecord

LEAST: Final = 20  # lost samples below which nothing is said
ALARM: Final = 4.0  # standard deviations; a run is looked at after every group, so this must be rare at each


class Losses(NamedTuple):
    """Losses of a run, or of one group, as integers that add up."""

    lost: int = 0  # samples
    shift: int = 0  # twice the number of pairs, less its mean, in which the lost sample is the longer one
    variance: int = 0  # of the shift

    @property
    def z(self) -> float:
        """Standard deviations by which lost samples are longer than those that count; 0 while there are few."""
        return self.shift / math.sqrt(self.variance) if self.lost >= LEAST and self.variance else 0.0

    def __add__(self, other: "Losses") -> "Losses":  # type: ignore[override]
        return Losses(*(one + two for one, two in zip(self, other, strict=True)))


def of_group(samples: Sequence[SampleRecord]) -> Losses:
    """Of all samples of one group, replaced ones too."""
    lost = [each.response_tokens for each in samples if each.outcome in REFILLED and each.response_tokens]
    kept = [each.response_tokens for each in samples if each.outcome in COUNTS]
    if not lost or not kept:
        return Losses()
    longer = sum((one > other) - (one < other) for one in lost for other in kept)
    size = len(lost) + len(kept)
    ties = sum(count**3 - count for count in Counter([*lost, *kept]).values())
    variance = len(lost) * len(kept) * (size + 1 - ties / (size * (size - 1))) / 3
    return Losses(len(lost), longer, round(variance))


def told(losses: Losses) -> str:
    """The finding in one sentence; empty where there is none."""
    if abs(losses.z) < ALARM:
        return ""
    how = "longer" if losses.z > 0 else "shorter"
    return (
        f"biased loss: {losses.lost} samples ended null after their rollout, and they are {how} than their siblings "
        f"({losses.z:+.1f} standard deviations): what remains is not a fair sample of the policy"
    )
