"""The pipeline as it is, and four in which one thing is as others have it."""

from collections.abc import Mapping
from typing import Final

import msgspec


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's handler does otherwise."""

    balanced: bool = True  # else each job takes a backend at random
    fast_bash: bool = True  # else each command is a new isolated process
    early_cleanup: bool = True  # else the sandbox lives until the job has been scored
    three_pools: bool = True  # else a worker's slot is one job's from its INIT to its score


WHOLE: Final = "all of it"
VARIANTS: Final[Mapping[str, Variant]] = {
    WHOLE: Variant(),
    "a random backend": Variant(balanced=False),
    "a process a command": Variant(fast_bash=False),
    "sandboxes kept until scored": Variant(early_cleanup=False),
    "one worker pool": Variant(three_pools=False),
}


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A task's payload. Times are the same in every variant, drawn by task, sample and turn."""

    variant: Variant
    turns: int
    tokens: int  # of a turn, on average
    commands: int  # of a turn
    init_ms: int
    eval_ms: int
    boxes: str  # gate: sandboxes that the node has room for
    slots: str  # gate: rollouts at once where there is one pool
    backends: list[str]
