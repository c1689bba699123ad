"""A filter for DAPO batches: keeps groups of which about half of the samples are right."""

from typing import Any

from prorl_mq.rules.filters import Candidate


def keep(group: Candidate, options: dict[str, Any]) -> bool:
    """`within`: how far the share of right samples may lie from one half (0.25)."""
    if not group.rewards:
        return False
    right = sum(reward > 0.5 for reward in group.rewards) / len(group.rewards)
    return abs(right - 0.5) <= float(options.get("within", 0.25))
