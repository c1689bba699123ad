"""The part of rLLM that a workflow meets, written from its source: no package registry has rLLM itself.

Names, fields and rules are those of its repository in autumn 2026 (`rllm.types`, `rllm.engine`, `rllm.workflows`,
`rllm.trainer.verl.transform`): what a trainer of it does with an episode is done here in the same way.
"""

import sys
import types
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest


@dataclass
class ModelOutput:
    """Its own has more fields; none of them is required."""

    text: str | None = None
    content: str | None = None
    prompt_ids: list[int] | None = None
    completion_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_length: int = 0
    completion_length: int = 0
    finish_reason: str | None = None
    weight_version: int | None = None


@dataclass
class Step:
    """Takes what it was not given from its output, and refuses log-probabilities that are not one a token."""

    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    chat_completions: list[dict[str, str]] = field(default_factory=list)
    model_response: str = ""
    model_output: ModelOutput | None = None
    reward: float = 0.0
    done: bool = False
    weight_version: int | None = None

    def __post_init__(self) -> None:
        made = self.model_output
        if made is not None:
            self.prompt_ids = self.prompt_ids or made.prompt_ids or []
            self.response_ids = self.response_ids or made.completion_ids or []
            self.logprobs = self.logprobs or made.logprobs or []
            self.weight_version = made.weight_version
        assert len(self.logprobs) in {0, len(self.response_ids)}


@dataclass
class Trajectory:
    name: str = "default_traj_name"
    task: Any = None
    steps: list[Step] = field(default_factory=list)
    reward: float | None = None


@dataclass
class Episode:
    id: str = ""
    task: Any = None
    termination_reason: Any = None
    is_correct: bool = False
    trajectories: list[Trajectory] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)


class TerminationReason(Enum):
    MAX_PROMPT_LENGTH_EXCEEDED = "max_prompt_length_exceeded"
    MAX_RESPONSE_LENGTH_EXCEEDED = "max_response_length_exceeded"
    ENV_DONE = "env_done"
    MAX_TURNS_EXCEEDED = "max_turns_exceeded"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"
    ERROR = "error"


class Workflow:
    """What its engine calls is `run_with_termination_handling`: an exception is an episode that it tries again."""

    def __init__(self, rollout_engine: Any, executor: Any, timeout: float = 1e6, **_: Any) -> None:
        self.rollout_engine, self.executor, self.timeout = rollout_engine, executor, timeout

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        raise NotImplementedError

    async def run_with_termination_handling(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        try:
            return await self.run(task, uid, **kwargs)
        except Exception as error:
            info = {"error": {"error_message": str(error), "error_type": type(error).__name__}}
            return Episode(id=uid, task=task, termination_reason=TerminationReason.ERROR, info=info)


@dataclass
class Row:
    """What is trained on: steps that continue each other, with what stands between them at mask 0."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    logprobs: list[float]


def rows(trajectory: Trajectory) -> list[Row]:
    """As its transforms merge steps."""
    made: list[Row] = []
    for step in trajectory.steps:
        output = step.model_output
        assert output is not None
        assert output.prompt_ids is not None
        assert output.completion_ids is not None
        whole = [*made[-1].prompt, *made[-1].response] if made else []
        if not made or output.prompt_ids[: len(whole)] != whole:
            made.append(Row(list(output.prompt_ids), [], [], []))
            whole = list(output.prompt_ids)
        between = output.prompt_ids[len(whole) :]
        made[-1].response += [*between, *output.completion_ids]
        made[-1].mask += [0] * len(between) + [1] * len(output.completion_ids)
        made[-1].logprobs += [0.0] * len(between) + list(output.logprobs or [])
    return made


def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the names by which workflows import them."""
    here = vars(sys.modules[__name__])
    names = {
        "rllm": [],
        "rllm.agents": [],
        "rllm.agents.agent": ["Episode", "Step", "Trajectory"],
        "rllm.engine": [],
        "rllm.engine.rollout": ["ModelOutput"],
        "rllm.workflows": [],
        "rllm.workflows.workflow": ["TerminationReason", "Workflow"],
    }
    for name, wanted in names.items():
        module = types.ModuleType(name)
        vars(module).update({each: here[each] for each in wanted})
        monkeypatch.setitem(sys.modules, name, module)
