"""verl: the fields of `AgentLoopOutput` (verl.experimental.agent_loop, 0.9).

    AgentLoopOutput(**fields) for fields in outputs(rollout)

| field | from |
|---|---|
| prompt_ids, response_ids, response_mask | the segment |
| response_logprobs | the segment's; 0.0 where the mask is 0 |
| reward_score | the sample's reward, in every segment: verl puts it on the last token of the response |
| num_turns | the prompt, each completion, and each answer of the environment between them |
| metrics | seconds of the backend, of tools and of EVAL |
| extra_fields | first and last policy version as verl names them; raw log-probabilities; what tells segments apart |

A rollout of several segments is several outputs, its rows. `share` in `extra_fields` is the weight of a row where a
loss averages each row first; where it averages tokens, a row's weight is 1. verl's own loop takes one output a sample:
it is given number `rollout.drawn`.
"""

import itertools
from typing import Any, TypedDict

from prorl_mq.converters.rollout import Rollout, logprobs, pieces, versions


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


def outputs(rollout: Rollout) -> list[AgentLoopOutput]:
    """One output a segment. Raises `NotTrainable` for a trajectory without turns."""
    return [_output(rollout, number) for number, _ in rollout.segments]


def _output(rollout: Rollout, number: int) -> AgentLoopOutput:
    segment = rollout.trajectory.segments[number]
    found = pieces(rollout.trajectory, number)
    turns = [piece.turn for piece in found]
    answers = sum(after.start > before.end for before, after in itertools.pairwise(found))
    last = number == rollout.segments[-1][0]
    return AgentLoopOutput(
        prompt_ids=list(segment.prompt_ids),
        response_ids=list(segment.response_ids),
        response_mask=list(segment.loss_mask),
        response_logprobs=logprobs(segment),
        reward_score=rollout.reward,
        num_turns=1 + len(found) + answers,
        metrics=Metrics(
            generate_sequences=sum(turn.llm_seconds for turn in turns),
            tool_calls=sum(call.seconds for turn in turns for call in turn.tool_calls),
            compute_score=rollout.sample.seconds.get("eval", 0.0) if last else 0.0,
            num_preempted=-1,  # not told
        ),
        extra_fields=_extra_fields(rollout, number),
    )


def _extra_fields(rollout: Rollout, number: int) -> dict[str, Any]:
    """The same keys for every sample: verl makes a column of each."""
    row = next(each for each in rollout.rows if each.segment == number)
    first, last = versions([rollout.trajectory.segments[number]]) or (None, None)
    return {
        "min_global_steps": first,
        "max_global_steps": last,
        "turn_scores": [],
        "tool_rewards": [],
        "job_id": rollout.sample.job_id,
        "outcome": str(rollout.sample.outcome),
        "stop_reason": rollout.trajectory.stop_reason,
        "truncated_by": rollout.trajectory.truncated_by,
        "raw_logprobs": rollout.trajectory.segments[number].raw_logprobs,
        "segment": number,
        "segments": len(rollout.segments),
        "row": row.row,
        "share": row.share,
    }
