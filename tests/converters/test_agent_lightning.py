"""Agent Lightning gets one triplet a turn, as its own server would make it of what we give."""

import math
import typing

import pydantic
import pytest

from prorl_mq.converters.agent_lightning import events, triplet
from tests.converters.made import ALL, compacted, with_tools
from tests.converters.published import importable, published

EVENTS = "whole/agentlightning/server/routes/events.py"


def test_a_turn_is_a_request_and_the_reward_comes_last() -> None:
    made = events(with_tools())
    assert [each["event_type"] for each in made] == ["model_request"] * 3 + ["reward"]
    first, second, third = (triplet(each["data"]) for each in made[:-1])
    assert (first["prompt_token_ids"], first["response_token_ids"]) == ([1, 2], [11, 12, 99])
    assert second["prompt_token_ids"] == [1, 2, 11, 12, 99, 5, 6]
    assert second["response_log_probs"] == [-0.5, -1.0]
    assert [each["server"]["version"] for each in (first, second, third)] == [7, 8, 8]
    assert made[-1]["data"]["value"] == 0.75


@pytest.mark.parametrize("case", ALL)
def test_prompts_continue_each_other_within_a_segment(case: str) -> None:
    """Their trainer merges what continues, and begins a row where nothing does."""
    rows, whole = 0, [0]
    for each in events(ALL[case]())[:-1]:
        short = triplet(each["data"])
        rows += short["prompt_token_ids"][: len(whole)] != whole
        whole = short["prompt_token_ids"] + short["response_token_ids"]
    assert rows == len(ALL[case]().segments)


@pytest.mark.parametrize("case", ALL)
def test_their_server_makes_the_same_triplet(case: str) -> None:
    theirs = published(EVENTS, ["_extract_choice_log_probs", "_trim_model_request"], {"math": math, "Any": typing.Any})
    for each in events(ALL[case]())[:-1]:
        made = theirs["_trim_model_request"](each["data"])
        assert {name: made[name] for name in triplet(each["data"])} == triplet(each["data"])


def test_their_models_take_a_turn_and_a_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    importable(monkeypatch)
    from agentlightning import schemas

    *turns, reward = events(compacted())
    taken: list[pydantic.BaseModel] = [schemas.ModelRequestData.model_validate(each["data"]) for each in turns]
    assert len(taken) == 3
    assert schemas.RewardData.model_validate(reward["data"]).value == 0.75
