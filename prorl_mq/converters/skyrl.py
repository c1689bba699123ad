"""SkyRL: a `GeneratorOutput` (skyrl.train.generators.base, 0.4) of many rollouts, in their order.

| field | from |
|---|---|
| prompt_token_ids, response_ids, loss_masks | the segment |
| rollout_logprobs | the segment's; 0.0 where the mask is 0 |
| rewards | the sample's reward; of several segments the last one's, 0.0 before it |
| stop_reasons | `length` if a limit ended the rollout, else `stop` |
| trajectory_ids | the task and the sample's place in its group: `TrajectoryID(**each)` |
| trajectory_generation_times | seconds of RUN, or of its turns |
| trajectory_time_splits | of these, seconds of the backend and of tools |
| is_last_step | None; once a rollout has several segments, SkyRL's step-wise form: a row a segment |
"""

from collections.abc import Sequence
from typing import TypedDict

from prorl_mq.converters.rollout import Rollout, logprobs


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
    rollout_metrics: None
    rollout_logprobs: list[list[float]]
    trajectory_ids: list[TrajectoryID]
    trajectory_generation_times: list[float]
    trajectory_time_splits: dict[str, list[float]]
    rollout_expert_indices: None
    rollout_sample_support: None
    is_last_step: list[bool] | None
    env_metrics: None
    pixel_values: None
    image_grid_thw: None


def output(rollouts: Sequence[Rollout]) -> GeneratorOutput:
    """All rollouts, each with its rows next to each other."""
    rows = [(rollout, number, segment) for rollout in rollouts for number, segment in rollout.segments]
    last = [number == rollout.segments[-1][0] for rollout, number, _ in rows]
    llm = [sum(turn.llm_seconds for turn in rollout.trajectory.turns) for rollout, _, _ in rows]
    tools = [_tool_seconds(rollout) for rollout, _, _ in rows]
    return GeneratorOutput(
        prompt_token_ids=[list(segment.prompt_ids) for _, _, segment in rows],
        response_ids=[list(segment.response_ids) for _, _, segment in rows],
        rewards=[rollout.reward if is_last else 0.0 for (rollout, _, _), is_last in zip(rows, last, strict=True)],
        loss_masks=[list(segment.loss_mask) for _, _, segment in rows],
        stop_reasons=["length" if rollout.trajectory.truncated_by else "stop" for rollout, _, _ in rows],
        rollout_metrics=None,
        rollout_logprobs=[logprobs(segment) for _, _, segment in rows],
        trajectory_ids=[
            TrajectoryID(instance_id=rollout.task_id, repetition_id=rollout.sample.index) for rollout, _, _ in rows
        ],
        trajectory_generation_times=[
            rollout.sample.seconds.get("run", model + tool)
            for (rollout, _, _), model, tool in zip(rows, llm, tools, strict=True)
        ],
        trajectory_time_splits={"llm": llm, "env": tools},
        rollout_expert_indices=None,
        rollout_sample_support=None,
        is_last_step=None if all(last) else last,
        env_metrics=None,
        pixel_values=None,
        image_grid_thw=None,
    )


def _tool_seconds(rollout: Rollout) -> float:
    return sum(call.seconds for turn in rollout.trajectory.turns for call in turn.tool_calls)
