"""SkyRL gets a row for each rollout, or, once a history was compacted, a row for each segment."""

import logging
import types
import typing

import numpy as np
import pydantic
import typing_extensions

from prorl_mq.converters.skyrl import GeneratorOutput, output
from tests.converters.made import compacted, truncated, with_tools
from tests.converters.published import published

VALIDATORS = ["validate_generator_output", "_validate_per_token_side_channels", "_validate_step_wise_fields"]


def accepted(made: GeneratorOutput, prompts: int, *, step_wise: bool) -> None:
    """By SkyRL's type, and by what its trainer asserts before it trains."""
    names = {name: getattr(typing, name) for name in ("Any", "Dict", "List", "Optional", "Union", "Literal")}
    given = {
        **names,
        "TypedDict": typing_extensions.TypedDict,
        "torch": types.SimpleNamespace(Tensor=typing.Any),
        "TrajectoryID": typing.Any,
        "RoutedExpertIndices": typing.Any,
        "SampleSupport": typing.Any,
        "__name__": __name__,
    }
    theirs = published("skyrl/train/generators/base.py", ["GeneratorOutput"], given)["GeneratorOutput"]
    assert pydantic.TypeAdapter(theirs).validate_python(made, strict=True) == made
    checks = published(
        "skyrl/train/utils/trainer_utils.py",
        VALIDATORS,
        {
            **names,
            "np": np,
            "logger": logging.getLogger("skyrl"),
            "GeneratorOutput": theirs,
            "SAMPLE_SUPPORT_FIELD": "rollout_sample_support",
        },
    )
    identified = [
        types.SimpleNamespace(**each, to_string=lambda each=each: str(each)) for each in made["trajectory_ids"]
    ]
    checks["validate_generator_output"](prompts, {**made, "trajectory_ids": identified}, step_wise=step_wise)


def test_a_row_for_each_rollout_in_their_order() -> None:
    made = output([truncated(), with_tools()])
    accepted(made, 2, step_wise=False)
    assert made["prompt_token_ids"] == [[1, 2], [1, 2]]
    assert made["response_ids"] == [[11, 12, 99], [11, 12, 99, 5, 6, 21, 22, 99, 5, 6, 31, 32, 99]]
    assert made["loss_masks"][1] == [1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1]
    assert made["rollout_logprobs"][1][:5] == [-0.5, -1.0, -1.5, 0.0, 0.0]
    assert (made["rewards"], made["stop_reasons"]) == ([0.0, 0.75], ["length", "stop"])
    assert made["trajectory_ids"] == [{"instance_id": "task", "repetition_id": 3}] * 2
    assert made["trajectory_time_splits"] == {"llm": [1.5, 4.5], "env": [0.25, 0.5]}
    assert (made["trajectory_generation_times"], made["is_last_step"]) == ([1.75, 5.0], None)


def test_a_compacted_history_makes_the_batch_step_wise() -> None:
    made = output([with_tools(), compacted()])
    accepted(made, 2, step_wise=True)
    assert made["is_last_step"] == [True, False, True]
    assert made["rewards"] == [0.75, 0.0, 0.75]
    assert [each["repetition_id"] for each in made["trajectory_ids"]] == [3, 4, 4]
    assert made["prompt_token_ids"] == [[1, 2], [1, 2], [1, 2, 3]]
