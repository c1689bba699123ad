"""The rewards of a group: their statistics, and how each sample stands to its siblings. Pure."""

import math
from collections.abc import Sequence

from prorl_mq.schema.lifecycle import COUNTS
from prorl_mq.schema.messages import RewardStats, SampleRecord


def counting(samples: Sequence[SampleRecord]) -> list[float]:
    """The rewards of the samples that count, in order; those without one are left out."""
    return [each.reward for each in samples if each.reward is not None and each.outcome in COUNTS]


def statistics(rewards: Sequence[float]) -> RewardStats | None:
    """None if there are none, or where they are too large to be squared."""
    if not rewards:
        return None
    try:
        mean = math.fsum(rewards) / len(rewards)
        std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    except OverflowError:
        return None
    return RewardStats(count=len(rewards), mean=mean, std=std, min=min(rewards), max=max(rewards))


def advantages(samples: Sequence[SampleRecord], stats: RewardStats | None) -> list[float | None]:
    """(reward - mean) / std of each sample, as GRPO wants it; 0 where all are equal, None where there is no reward."""
    if stats is None:
        return []
    return [
        None
        if each.reward is None or each.outcome not in COUNTS
        else (each.reward - stats.mean) / stats.std
        if stats.max > stats.min and stats.std > 0
        else 0.0
        for each in samples
    ]
