"""SkyRL: a `GeneratorOutput` (skyrl.train.generators.base, 0.4) of many rollouts, in their order.

| field | from |
|---|---|
| prompt_token_ids, response_ids, loss_masks | the segment |
| rollout_logprobs | the segment's; 0.0 where the mask is 0 |
| rewards | the sample's reward; of several segments the last one's, 0.0 before it |
| stop_reasons | `length` if a limit ended the rollout, else `stop`; `error` for one that was lost |
| trajectory_ids | the task and the sample's place in its group: `TrajectoryID(**each)` |
| trajectory_generation_times | seconds of RUN, or of its turns |
| trajectory_time_splits | of these, seconds of the backend and of tools |
| rollout_expert_indices | the segment's routed experts, where the batch asked for them: (tokens, layers, top_k) |
| pixel_values, image_grid_thw | of the segment's images by the model's processor, tensors; None without any image |
| is_last_step | in SkyRL's step-wise form, where each row of a sample is an entry; else None, and one row is drawn |

A sample that was lost is one token of mask 0, as in SkyRL's own integrations. SkyRL would count its reward of 0 in the
baseline of its prompt: mask the whole prompt (`lost` is every sample of it).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

from prorl_mq.converters import experts, images
from prorl_mq.converters.limits import FittedRow, drawn, fitted
from prorl_mq.converters.rollout import Rollout


class TrajectoryID(TypedDict):
    """The fields of SkyRL's dataclass."""

    instance_id: str
    repetition_id: int


class GeneratorOutput(TypedDict):
    """SkyRL's keys, all of them. Its lists have one entry a row; what is None here does not apply."""

    prompt_token_ids: list[list[int]]
    response_ids: list[list[int]]
    rewards: list[float]
    loss_masks: list[list[int]]
    stop_reasons: list[str]
    rollout_metrics: dict[str, float] | None
    rollout_logprobs: list[list[float]]
    trajectory_ids: list[TrajectoryID]
    trajectory_generation_times: list[float]
    trajectory_time_splits: dict[str, list[float]]
    rollout_expert_indices: list[Any] | None
    rollout_sample_support: None
    is_last_step: list[bool] | None
    env_metrics: None
    pixel_values: list[Any] | None
    image_grid_thw: list[Any] | None


class _Row(NamedTuple):
    rollout: Rollout | None  # None: it was lost
    fit: FittedRow | None
    last: bool


def output(
    rollouts: Sequence[Rollout | None], *, step_wise: bool | None = None, processor: Any = None
) -> GeneratorOutput:
    """All rollouts, each with its rows next to each other. None stands for one that was lost. `processor`: of the
    model, as `transformers.AutoProcessor` loads it; rollouts with images need it.

    Without `step_wise` the form is step-wise if a rollout has several rows.
    """
    fits = [fitted(each, images=processor is not None) if each else [] for each in rollouts]
    wise = any(len(each) > 1 for each in fits) if step_wise is None else step_wise
    rows: list[_Row] = []
    for rollout, fit in zip(rollouts, fits, strict=True):
        if rollout is None:
            rows.append(_Row(None, None, last=True))
        else:
            kept = fit if wise else [drawn(rollout, fit)]
            rows += [_Row(rollout, each, last=each is kept[-1]) for each in kept]
    llm = [sum(turn.llm_seconds for turn in row.rollout.trajectory.turns) if row.rollout else 0.0 for row in rows]
    tools = [_tool_seconds(row.rollout) for row in rows]
    shown = [(row.rollout.trajectory, row.fit.row.segment) if row.rollout and row.fit else None for row in rows]
    pixels, grids = images.tensors(shown, processor)
    return GeneratorOutput(
        prompt_token_ids=[row.fit.prompt_ids if row.fit else [0] for row in rows],
        response_ids=[row.fit.response_ids if row.fit else [0] for row in rows],
        rewards=[row.rollout.reward if row.rollout and row.last else 0.0 for row in rows],
        loss_masks=[row.fit.loss_mask if row.fit else [0] for row in rows],
        stop_reasons=[_stop_reason(row.rollout) for row in rows],
        rollout_metrics=None,
        rollout_logprobs=[row.fit.logprobs if row.fit else [0.0] for row in rows],
        trajectory_ids=[_trajectory_id(row.rollout) for row in rows],
        trajectory_generation_times=[
            row.rollout.sample.seconds.get("run", model + tool) if row.rollout else 0.0
            for row, model, tool in zip(rows, llm, tools, strict=True)
        ],
        trajectory_time_splits={"llm": llm, "env": tools},
        rollout_expert_indices=_experts(rows),
        rollout_sample_support=None,
        is_last_step=[row.last for row in rows] if wise else None,
        env_metrics=None,
        pixel_values=pixels,
        image_grid_thw=grids,
    )


def _experts(rows: Sequence[_Row]) -> list[Any] | None:
    """One array a row; None unless each row that was sampled has routes. A lost one has those of its one token."""
    routes = [row.fit.routes for row in rows if row.fit]
    known = next((each for each in routes if each is not None), None)
    if known is None or None in routes:
        return None
    nothing = experts.placeholder(known.of)
    return [experts.array((row.fit.routes if row.fit else None) or nothing) for row in rows]


def _stop_reason(rollout: Rollout | None) -> str:
    if rollout is None:
        return "error"
    return "length" if rollout.trajectory.truncated_by else "stop"


def _trajectory_id(rollout: Rollout | None) -> TrajectoryID:
    if rollout is None:
        return TrajectoryID(instance_id="lost", repetition_id=0)
    return TrajectoryID(instance_id=rollout.task_id, repetition_id=rollout.sample.index)


def _tool_seconds(rollout: Rollout | None) -> float:
    turns = rollout.trajectory.turns if rollout else ()
    return sum(call.seconds for turn in turns for call in turn.tool_calls)
