"""The part of slime and miles that a generate function meets, written from their source of August 2026.

Names, fields and rules are those of `slime.utils.types` and of `slime.ray.rollout`, which miles has too; neither is in
a package registry.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass
class Sample:
    """Its own has more fields, none of which a row needs."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    status: Status = Status.PENDING

    def get_reward_value(self, args: Any) -> Any:
        return self.reward if not args.reward_key else self.reward[args.reward_key]


def flattened(samples: list[Sample]) -> dict[str, list[Any]]:
    """As its rollout manager makes train data: the sum over a rollout's masks divides the loss of each of its rows."""
    masks = []
    for each in samples:
        assert each.loss_mask is not None
        assert len(each.loss_mask) == each.response_length
        masks.append([0] * each.response_length if each.remove_sample else each.loss_mask)
    ids = [each.rollout_id for each in samples]
    totals: dict[Any, int] = defaultdict(int)
    for name, mask in zip(ids, masks, strict=True):
        totals[name] += sum(mask)
    return {"rollout_ids": ids, "loss_masks": masks, "rollout_mask_sums": [totals[name] for name in ids]}
