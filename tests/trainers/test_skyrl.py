"""SkyRL's generator: standard rows, step-wise and not, and a lost prompt that takes no other with it."""

import abc
import asyncio
import dataclasses
import types
from typing import Any

import pytest

from prorl_mq.bridges import skyrl as bridge
from prorl_mq.errors import NotTrainable
from tests.api.service import SOURCE, Worker
from tests.converters.made import compacted
from tests.converters.published import published
from tests.converters.test_skyrl import accepted
from tests.pictures.seeing import processor, seeing_renderer
from tests.pictures.test_export import seen
from tests.trainers.serving import MATH, question, serving, standard

pytestmark = pytest.mark.anyio
PARAMS = {"temperature": 1.0, "max_generate_length": 64, "min_p": 0.0, "logprobs": 1, "stop": None}


@pytest.fixture(scope="module")
def theirs() -> types.SimpleNamespace:
    """SkyRL's interface and ids as published."""
    names = {"ABC": abc.ABC, "abstractmethod": abc.abstractmethod, "dataclass": dataclasses.dataclass}
    given = {**names, **dict.fromkeys(("GeneratorInput", "GeneratorOutput"), Any), "__name__": __name__}
    wanted = ["GeneratorInterface", "TrajectoryID"]
    found = published("skyrl/train/generators/base.py", wanted, given)
    return types.SimpleNamespace(**{name: found[name] for name in wanted})


def configured(*, wise: bool, **more: Any) -> Any:
    return types.SimpleNamespace(step_wise_trajectories=wise, max_turns=5, max_input_length=512, **more)


def batch(theirs: Any, *numbers: float, n: int = 2) -> dict[str, Any]:
    """As its trainer prepares one: samples of a prompt one behind the other."""
    rows = [standard(number) for number in numbers for _ in range(n)]
    return {
        "prompts": [row["prompt"] for row in rows],
        "env_classes": [MATH] * len(rows),
        "env_extras": [{"reward_spec": row["reward_model"], "extra_info": row["extra_info"]} for row in rows],
        "sampling_params": PARAMS,
        "trajectory_ids": [theirs.TrajectoryID(str(place), r) for place in range(len(numbers)) for r in range(n)],
        "batch_metadata": types.SimpleNamespace(global_step=3, training_phase="train"),
    }


def accepted_by_theirs(made: Any, prompts: int, *, step_wise: bool) -> None:
    output: Any = {**made, "trajectory_ids": list(map(vars, made["trajectory_ids"]))}
    accepted(output, prompts, step_wise=step_wise)


@pytest.mark.parametrize("wise", [False, True], ids=["whole", "step-wise"])
async def test_standard_rows_come_back_in_order_in_the_form_that_is_configured(
    url: str, worker: Worker, theirs: Any, wise: bool
) -> None:
    generator = bridge.generator(theirs)(url, configured(wise=wise))
    assert isinstance(generator, theirs.GeneratorInterface)
    asked = batch(theirs, 0.25, 0.5)
    async with serving(worker, 4):
        made = await generator.generate(asked)
    assert made["rewards"] == [0.25, 0.25, 0.5, 0.5]
    assert made["trajectory_ids"] == asked["trajectory_ids"]
    assert made["is_last_step"] == ([True] * 4 if wise else None)
    accepted_by_theirs(made, 4, step_wise=wise)


@pytest.mark.parametrize("wise", [False, True], ids=["whole", "step-wise"])
async def test_several_rows_are_all_there_step_by_step_or_one_is_drawn(
    url: str, worker: Worker, theirs: Any, wise: bool
) -> None:
    asked = batch(theirs, 0.25)
    async with serving(worker, 2, trajectory=compacted().trajectory):
        made = await bridge.generator(theirs)(url, configured(wise=wise)).generate(asked)
    one, two = asked["trajectory_ids"]
    assert made["trajectory_ids"] == ([one, one, two, two] if wise else [one, two])
    assert made["rewards"] == ([0.0, 0.25, 0.0, 0.25] if wise else [0.25, 0.25])
    accepted_by_theirs(made, 2, step_wise=wise)


@pytest.mark.parametrize("wise", [False, True], ids=["whole", "step-wise"])
async def test_a_prompt_that_loses_a_sample_is_masked_and_no_other_is(
    url: str, worker: Worker, theirs: Any, wise: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(worker, 6):  # the lost ones are refilled once
        made = await bridge.generator(theirs)(url, configured(wise=wise)).generate(batch(theirs, -1, 0.5))
    assert [sum(mask) for mask in made["loss_masks"]] == [0, 0, 8, 8]
    assert made["stop_reasons"] == ["error", "error", "stop", "stop"]
    assert made["rollout_metrics"] == {"generate/num_error_trajectories": 2.0}
    assert "infra_error" in caplog.text
    accepted_by_theirs(made, 4, step_wise=wise)


async def test_a_batch_of_which_nothing_is_left_raises_with_the_causes(url: str, worker: Worker, theirs: Any) -> None:
    async with serving(worker, 4):
        with pytest.raises(NotTrainable, match=r"no prompt of the batch.*infra_error"):
            await bridge.generator(theirs)(url).generate(batch(theirs, -1))


async def test_rows_that_the_service_refuses_fail_alone(url: str, worker: Worker, theirs: Any) -> None:
    asked = batch(theirs, 0.25, 0.5, n=1)
    asked["env_classes"][0] = "nobody"
    async with serving(worker, 1):
        made = await bridge.generator(theirs)(url).generate(asked)
    assert [sum(mask) for mask in made["loss_masks"]] == [0, 8]


async def test_a_batch_that_is_cancelled_leaves_no_rollout_behind(url: str, worker: Worker, theirs: Any) -> None:
    async with asyncio.timeout(100):
        running = asyncio.create_task(bridge.generator(theirs)(url).generate(batch(theirs, 0.25, 0.5, n=1)))
        held = [await worker.in_run() for _ in range(2)]
        running.cancel()
        for each in held:
            await worker.stop(each)
        await asyncio.wait({running})


async def test_rows_without_an_answer_are_payloads_and_limits_are_the_configurations(
    url: str, worker: Worker, theirs: Any
) -> None:
    asked = {
        **batch(theirs, 0.25, n=1),
        "env_classes": [SOURCE],
        "env_extras": [question(0.75)],
        "trajectory_ids": None,
    }
    generator = bridge.generator(theirs)(url, configured(wise=False, zero_reward_on_non_stop=True))
    async with serving(worker, 1):
        made = await generator.generate(asked)
    assert (made["rewards"], made["trajectory_ids"][0].to_string()) == ([0.75], "prompt-0_0")
    sampling = bridge._sampling(asked, configured(wise=False))
    assert (sampling.max_turns, sampling.max_tokens_per_turn, sampling.max_context_tokens) == (5, 64, 576)


def test_what_skyrls_own_generator_does_to_truncated_samples_is_done_here() -> None:
    made = {"stop_reasons": ["stop", "length"], "rewards": [1.0, 1.0], "loss_masks": [[1, 0], [1]]}
    cfg = configured(wise=False, zero_reward_on_non_stop=True, apply_overlong_filtering=True)
    done = bridge._as_configured(made, cfg)
    assert (done["rewards"], done["loss_masks"]) == ([1.0, 0.0], [[1, 0], [0]])


async def test_images_come_as_the_processors_tensors_and_without_a_processor_are_refused(
    url: str, worker: Worker, theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = processor(seeing_renderer()._template.tokenizer)
    whole = type(made.image_processor).__call__

    def arrays(self: Any, *given: Any, return_tensors: str, **more: Any) -> Any:
        assert return_tensors == "pt"  # arrays of numpy stand for torch's tensors, which are not installed here
        return whole(self, *given, return_tensors="np", **more)

    monkeypatch.setattr(type(made.image_processor), "__call__", arrays)
    generator, blind = (
        bridge.generator(theirs)(url, configured(wise=True), **given) for given in ({"processor": made}, {})
    )
    asked = batch(theirs, 0.25, n=1)
    async with serving(worker, 2, trajectory=seen().trajectory):
        found = await generator.generate(asked)
        with pytest.raises(NotTrainable, match="has 2 images, and this form has no place for them"):
            await blind.generate(asked)
    assert [each.tolist() for each in found["image_grid_thw"]] == [[[1, 4, 4], [1, 6, 2], [1, 4, 4]], [[1, 6, 2]]]
    assert [len(each) for each in found["pixel_values"]] == [16 + 12 + 16, 12]
    accepted_by_theirs(found, 2, step_wise=True)
