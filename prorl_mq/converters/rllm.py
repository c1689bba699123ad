"""rLLM: the steps of a rollout, each with the fields of its `ModelOutput` (rllm.engine.rollout).

    Trajectory(steps=[Step(model_output=ModelOutput(**fields)) for fields in model_outputs(rollout)], reward=...)

A turn is a step. Its trainer merges steps whose prompts continue each other, and begins a new row where they do not; so
the turns of all segments are the steps of one trajectory. Quadratic: each step repeats its prompt.

| field | from |
|---|---|
| prompt_ids | the segment's prompt and its response up to the turn |
| completion_ids, logprobs | the turn's sampled tokens |
| content | the completion's text, without thought, calls and markers |
| text | the whole completion as people read it |
| weight_version | the policy version at the turn's end, where the backend told it as a whole number |
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from prorl_mq.converters.rollout import Rollout, completions, said

_LIMITS: Final[Mapping[str | None, str]] = {
    None: "env_done",
    "turns": "max_turns_exceeded",
    "tokens": "max_response_length_exceeded",
    "context": "max_prompt_length_exceeded",
    "time": "timeout",
}


class ModelOutput(TypedDict):
    """The fields that its transforms read, and those that people do."""

    text: str
    content: str
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float | None]
    prompt_length: int
    completion_length: int
    finish_reason: str
    weight_version: int | None


def model_outputs(rollout: Rollout) -> list[ModelOutput]:
    """One a turn. Raises `NotTrainable` for a trajectory without turns."""
    return [
        ModelOutput(
            text=each.turn.text,
            content=said(each.turn),
            prompt_ids=each.prompt_ids,
            completion_ids=each.ids,
            logprobs=each.logprobs,
            prompt_length=len(each.prompt_ids),
            completion_length=len(each.ids),
            finish_reason=each.turn.finish_reason,
            weight_version=each.version,
        )
        for each in completions(rollout)
    ]


def termination_reason(rollout: Rollout) -> str:
    """The value of its `TerminationReason`, by which its filters choose."""
    return _LIMITS.get(rollout.trajectory.truncated_by, "unknown")
