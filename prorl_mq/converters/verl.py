"""verl: the fields of `AgentLoopOutput` (verl.experimental.agent_loop, 0.9).

    AgentLoopOutput(**fields) for fields in outputs(rollout)

| field | from |
|---|---|
| prompt_ids, response_ids, response_mask | the segment |
| response_logprobs | the segment's; 0.0 where the mask is 0 |
| reward_score | the sample's reward, in every segment: verl puts it on the last token of the response |
| num_turns | the prompt, each completion, and each answer of the environment between them |
| metrics | seconds of the backend, of tools and of EVAL |
| multi_modal_data | `images`: those of the segment in the order of their ids, of Pillow; not there without any |
| routed_experts | the segment's, where the batch asked for them: (tokens, layers, top_k); verl pads behind them |
| extra_fields | first and last policy version as verl names them; raw log-probabilities; what tells segments apart |

A rollout of several segments is several outputs, its rows. `share` in `extra_fields` is the weight of a row where a
loss averages each row first; where it averages tokens, a row's weight is 1. Lengths are verl's `rollout.prompt_length`
and `rollout.response_length`: what it pads to.
"""

import itertools
from typing import Any, NotRequired, TypedDict

from prorl_mq.converters import experts, images
from prorl_mq.converters.limits import FittedRow, fitted
from prorl_mq.converters.rollout import Rollout, pieces, versions


class Metrics(TypedDict):
    """verl's `AgentLoopMetrics`; seconds."""

    generate_sequences: float
    tool_calls: float
    compute_score: float
    num_preempted: int


class AgentLoopOutput(TypedDict):
    """The fields that verl requires, and those it reads."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float]
    reward_score: float
    num_turns: int
    metrics: Metrics
    extra_fields: dict[str, Any]
    routed_experts: NotRequired[Any]  # an array of numpy
    multi_modal_data: NotRequired[dict[str, Any]]


def outputs(
    rollout: Rollout, *, prompt_length: int | None = None, response_length: int | None = None
) -> list[AgentLoopOutput]:
    """One output a row that has a trained token within the lengths. Raises `NotTrainable` where there is none."""
    rows = fitted(rollout, prompt_length=prompt_length, response_length=response_length, images=True)
    return [_output(rollout, row, last=row is rows[-1]) for row in rows]


def _output(rollout: Rollout, fit: FittedRow, *, last: bool) -> AgentLoopOutput:
    found = pieces(rollout.trajectory, fit.row.segment, images=True)
    turns = [piece.turn for piece in found]
    answers = sum(after.start > before.end for before, after in itertools.pairwise(found))
    made = AgentLoopOutput(
        prompt_ids=fit.prompt_ids,
        response_ids=fit.response_ids,
        response_mask=fit.loss_mask,
        response_logprobs=fit.logprobs,
        reward_score=rollout.reward,
        num_turns=1 + len(found) + answers,
        metrics=Metrics(
            generate_sequences=sum(turn.llm_seconds for turn in turns),
            tool_calls=sum(call.seconds for turn in turns for call in turn.tool_calls),
            compute_score=rollout.sample.seconds.get("eval", 0.0) if last else 0.0,
            num_preempted=-1,  # not told
        ),
        extra_fields=_extra_fields(rollout, fit),
    )
    if fit.routes is not None:
        made["routed_experts"] = experts.array(fit.routes)
    if shown := images.of_segment(rollout.trajectory, fit.row.segment):
        made["multi_modal_data"] = {"images": shown}
    return made


def _extra_fields(rollout: Rollout, fit: FittedRow) -> dict[str, Any]:
    """The same keys for every sample: verl makes a column of each."""
    segment = rollout.trajectory.segments[fit.row.segment]
    first, last = versions([segment]) or (None, None)
    return {
        "min_global_steps": first,
        "max_global_steps": last,
        "turn_scores": [],
        "tool_rewards": [],
        "reward_extra_info": {},  # verl reads it of each output but the last
        "job_id": rollout.sample.job_id,
        "outcome": str(rollout.sample.outcome),
        "stop_reason": rollout.trajectory.stop_reason,
        "truncated_by": "length" if fit.cut else rollout.trajectory.truncated_by,
        "raw_logprobs": segment.raw_logprobs,
        "segment": fit.row.segment,
        "segments": fit.row.rows,
        "row": fit.row.row,
        "share": fit.share,
    }
