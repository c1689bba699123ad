"""NeMo Gym gets items of which one a turn can be trained on, each continuing the one before."""

import typing

import pydantic
import pytest
from typing_extensions import TypedDict

from prorl_mq.converters.nemo_gym import Item, items
from tests.converters.made import ALL, compacted, with_tools
from tests.converters.published import published

TOKENS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def trainable(made: list[Item]) -> list[Item]:
    return [item for item in made if "prompt_token_ids" in item]


def test_the_last_thing_that_the_model_made_in_a_turn_has_the_tokens() -> None:
    [made] = items(with_tools())
    assert [(item["type"], "prompt_token_ids" in item) for item in made] == [
        *[("message", False), ("function_call", True), ("function_call_output", False)] * 2,
        ("message", True),
    ]
    first, second, third = trainable(made)
    assert (first["prompt_token_ids"], first["generation_token_ids"]) == ([1, 2], [11, 12, 99])
    assert second["prompt_token_ids"] == [1, 2, 11, 12, 99, 5, 6]
    assert second["generation_log_probs"] == [-0.5, -1.0]
    assert third["prompt_token_ids"][-4:] == [22, 99, 5, 6]  # the turn before was cut and closed by rule
    assert (made[1]["name"], made[1]["arguments"], made[2]["output"]) == ("think", '{"thought": "x"}', "one")
    assert [item["status"] for item in made if item["type"] == "message"] == ["completed", "incomplete", "completed"]


@pytest.mark.parametrize("case", ALL)
def test_token_fields_come_all_three_or_none_and_continue_each_other(case: str) -> None:
    for made in items(ALL[case]()):
        whole: list[int] = []
        for item in made:
            assert {name in item for name in TOKENS} in ({True}, {False})
        for item in trainable(made):
            assert item["prompt_token_ids"][: len(whole)] == whole
            assert len(item["generation_token_ids"]) == len(item["generation_log_probs"]) > 0
            whole = item["prompt_token_ids"] + item["generation_token_ids"]


def test_each_segment_is_a_list_of_its_own() -> None:
    first, second = items(compacted())
    assert trainable(first)[0]["prompt_token_ids"] == [1, 2]
    assert trainable(second)[0]["prompt_token_ids"] == [1, 2, 3]


@pytest.mark.parametrize("case", ALL)
def test_gyms_own_types_take_every_item(case: str) -> None:
    names = {name: getattr(typing, name) for name in ("Any", "List", "Literal", "Optional", "Union", "TypeAlias")}
    given = {
        **names,
        "BaseModel": pydantic.BaseModel,
        "TypedDict": TypedDict,
        "Annotation": typing.Any,
        "Logprob": typing.Any,
        "ResponseFunctionCallOutputItemListParam": list[typing.Any],
        "__name__": __name__,
    }
    plain = ["NeMoGymResponseOutputMessage", "NeMoGymResponseFunctionToolCall", "NeMoGymFunctionCallOutput"]
    trained = [f"{name}ForTraining" for name in plain[:2]]
    parts = ["RoutedExperts", "TokenIDLogProbMixin", "NeMoGymContent", "NeMoGymResponseOutputText"]
    theirs = published("nemo_gym/openai_utils.py", [*plain, *trained, *parts, "NeMoGymResponseOutputRefusal"], given)
    by_type = dict(zip(["message", "function_call", "function_call_output"], plain, strict=True))
    for made in items(ALL[case]()):
        for item in made:
            kind = by_type[item["type"]] + ("ForTraining" if "prompt_token_ids" in item else "")
            dumped = theirs[kind](**item).model_dump(exclude_none=True)
            assert dumped == item
