"""Orders to act on recorded rollouts, and their answers: between `prorl-mq` and `workers.rehearsal.orders`.

Each is a line of JSON. `replay` makes the calls of a rollout again in a new sandbox, `regrade` scores again what RUN
has handed to EVAL.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from prorl_mq.schema.messages import Sampling, Task
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.schema.turns import LoggedTurn


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout to replay: its task, and its turns as they were."""

    job_id: str
    index: int  # place in the group
    task: Task
    turns: Sequence[LoggedTurn]
    sampling: Sampling = Sampling()  # only the limits of tools count
    artefact: bytes = b""  # as the trajectory has it; empty: what is handed to EVAL is not compared


class Flakiness(msgspec.Struct, frozen=True):
    """Result of runs of a task family's examples that say the same. `why` is empty where they met the same worlds."""

    data_sources: list[str]
    why: str


class WorldDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first place at which two rollouts of the same turns differ. `call` is None behind the calls of the turn."""

    turn: int
    call: int | None
    what: str  # the call with its arguments, or which part differs
    recorded: str
    replayed: str
    lines: Sequence[str]  # both, as a unified diff in which lines that are alike are context


class ReplayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a replay. `turns` and `calls` are those that answered alike before `difference`."""

    job_id: str
    turns: int = 0
    calls: int = 0
    difference: WorldDifference | None = None
    error: str | None = None  # why it could not be replayed


class RegradeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A sample to score: its task, sealed fields included, and its trajectory with its artefact."""

    job_id: str
    index: int
    task: Task
    trajectory: Trajectory


class RegradeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The score of a sample, or why it has none."""

    job_id: str
    reward: float | None = None
    parts: Mapping[str, float] = {}
    note: str | None = None
    evidence: Mapping[str, Any] = {}
    error: str | None = None
