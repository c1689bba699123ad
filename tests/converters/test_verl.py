"""verl gets one output a segment, whose arrays say what was sampled and what was not."""

import typing

import pydantic
import pytest

from prorl_mq.converters.rollout import Rollout
from prorl_mq.converters.verl import outputs
from tests.converters.made import ALL, compacted, truncated, with_tools
from tests.converters.published import published


def test_tool_turns_are_masked_and_counted() -> None:
    [made] = outputs(with_tools())
    assert made == {
        "prompt_ids": [1, 2],
        "response_ids": [11, 12, 99, 5, 6, 21, 22, 99, 5, 6, 31, 32, 99],
        "response_mask": [1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1],
        "response_logprobs": [-0.5, -1.0, -1.5, 0.0, 0.0, -0.5, -1.0, 0.0, 0.0, 0.0, -0.5, -1.0, -1.5],
        "reward_score": 0.75,
        "num_turns": 6,
        "metrics": {"generate_sequences": 4.5, "tool_calls": 0.5, "compute_score": 2.0, "num_preempted": -1},
        "extra_fields": {
            "min_global_steps": 7,
            "max_global_steps": 8,
            "turn_scores": [],
            "tool_rewards": [],
            "reward_extra_info": {},
            "job_id": "run.b.g.0",
            "outcome": "completed",
            "stop_reason": "answer",
            "truncated_by": None,
            "raw_logprobs": False,
            "segment": 0,
            "segments": 1,
            "row": 0,
            "share": 1.0,
        },
    }


def test_a_truncated_rollout_ends_with_what_was_sampled() -> None:
    """verl puts the reward on the last token of the response: on one that is masked it would be lost."""
    [made] = outputs(truncated())
    assert made["response_mask"] == [1, 1, 1]
    assert made["extra_fields"]["truncated_by"] == "turns"


def test_a_compacted_rollout_is_an_output_for_each_segment_that_sampled() -> None:
    first, second = outputs(compacted())
    assert (first["prompt_ids"], second["prompt_ids"]) == ([1, 2], [1, 2, 3])
    assert [made["reward_score"] for made in (first, second)] == [0.75, 0.75]
    assert [made["metrics"]["compute_score"] for made in (first, second)] == [0.0, 2.0]
    assert second["extra_fields"] | {"min_global_steps": 8, "max_global_steps": 9} == second["extra_fields"]
    assert [(made["extra_fields"]["segment"], made["extra_fields"]["segments"]) for made in (first, second)] == [
        (0, 2),
        (1, 2),
    ]


@pytest.mark.parametrize("case", ALL)
def test_verls_own_type_takes_every_output(case: str) -> None:
    given = {"BaseModel": pydantic.BaseModel, "Any": typing.Any, "Optional": typing.Optional, "__name__": __name__}
    theirs = published("verl/experimental/agent_loop/agent_loop.py", ["AgentLoopMetrics", "AgentLoopOutput"], given)
    rollout: Rollout = ALL[case]()
    for made in outputs(rollout):
        taken = theirs["AgentLoopOutput"](**made)
        assert {name: value for name, value in taken.model_dump().items() if name in made} == made
