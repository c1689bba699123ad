"""Images in what trainers take, and in the rows that they have."""

from typing import Any

import msgspec
import pytest
from PIL import Image

from prorl_mq.bridges.tasks import task_of
from prorl_mq.converters import agent_lightning, nemo_gym, prorl, rllm, skyrl, verl
from prorl_mq.converters.limits import fitted
from prorl_mq.converters.rollout import Rollout, rollout
from prorl_mq.converters.table import Sample, rows
from prorl_mq.errors import NotTrainable
from prorl_mq.schema.images.rows import bytes_of, taken_out
from prorl_mq.schema.messages import Outcome
from tests.converters.made import Script, sample, with_tools
from tests.pictures.seeing import drawn, picture, processor, seeing_renderer
from workers.agent.tokens import TokenRecord
from workers.inference.pictures import Picture

PAD = 7
RED, BLUE = picture(56, 56), picture(28, 84, "blue")


def seen() -> Rollout:
    """Two images, the first of them twice, and a compaction that keeps the second."""
    shown = [
        Picture(image=RED, start=1, length=2, pad=PAD), Picture(image=BLUE, start=4, length=1, pad=PAD),
        Picture(image=RED, start=5, length=2, pad=PAD),
    ]  # fmt: skip
    script = Script([1])
    script.record = TokenRecord([1, PAD, PAD, 3, PAD, PAD, PAD, 4], pictures=shown)
    script.turn(tool="one")
    script.record.compact([1, PAD, 2], pictures=[Picture(image=BLUE, start=1, length=1, pad=PAD)])
    script.turn()
    return rollout("task", sample(), script.finished())


def test_verl_gets_each_rows_images_in_the_order_of_their_ids() -> None:
    first, second = verl.outputs(seen())
    assert [each.size for each in first["multi_modal_data"]["images"]] == [(56, 56), (28, 84), (56, 56)]
    assert [each.getpixel((0, 0)) for each in second["multi_modal_data"]["images"]] == [(0, 0, 255)]
    assert first["prompt_ids"].count(PAD) == 5
    assert all("multi_modal_data" not in each for each in verl.outputs(with_tools()))


def test_skyrl_gets_the_processors_tensors_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = seeing_renderer()._template.tokenizer
    made = processor(tokens)
    whole = type(made.image_processor).__call__

    def arrays(self: Any, *given: Any, return_tensors: str, **more: Any) -> Any:
        assert return_tensors == "pt"  # arrays of numpy stand for torch's tensors, which are not installed here
        return whole(self, *given, return_tensors="np", **more)

    monkeypatch.setattr(type(made.image_processor), "__call__", arrays)
    found = skyrl.output([seen(), with_tools(), None], step_wise=True, processor=made)
    pixels, grids = found["pixel_values"], found["image_grid_thw"]
    assert pixels is not None
    assert grids is not None
    assert [grid.tolist() for grid in grids] == [[[1, 4, 4], [1, 6, 2], [1, 4, 4]], [[1, 6, 2]], [], []]
    assert [len(each) for each in pixels] == [16 + 12 + 16, 12, 0, 0]
    assert len(pixels) == len(found["response_ids"]) == 4
    assert skyrl.output([with_tools()], processor=made)["pixel_values"] is None


@pytest.mark.parametrize(
    "form",
    [
        lambda found: skyrl.output([found]),
        fitted,
        rllm.model_outputs,
        nemo_gym.items,
        agent_lightning.events,
        lambda found: prorl.messages(found.trajectory),
    ],
    ids=["SkyRL without a processor", "rows", "rLLM", "NeMo Gym", "Agent Lightning", "ProRL"],
)
def test_forms_without_a_place_for_images_refuse_them(form: Any) -> None:
    """The control: the same form takes a rollout of text."""
    form(with_tools())
    with pytest.raises(NotTrainable, match="has 2 images, and this form has no place for them"):
        form(seen())


def test_a_table_has_their_ids() -> None:
    found = seen()
    about = {"run_id": "r", "batch_id": "b", "group_id": "g", "task_id": "t", "data_source": "d", "verdict": "accepted"}
    made = Sample(
        job_id="r.b.g.0",
        index=0,
        outcome=Outcome.COMPLETED,
        trajectory=found.trajectory,
        **about,  # type: ignore[arg-type]
    )
    assert [list(row.prompt_ids).count(PAD) for row in rows(made)] == [5, 1]
    line = msgspec.json.decode(msgspec.json.encode(made), type=Sample)
    assert line.trajectory is not None
    assert line.trajectory.images == [RED, BLUE]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [{"role": "user", "content": "<image>?"}], "images": [{"bytes": drawn(9, 5), "path": None}]},
        {"prompt": [{"role": "user", "content": "<image>?"}], "images": [Image.new("RGB", (9, 5), "red")]},
        {"raw_prompt": [{"role": "user", "content": [
            {"type": "image", "image": Image.new("RGB", (9, 5), "red")}, {"type": "text", "text": "?"},
        ]}], "images": [Image.new("RGB", (9, 5), "red")]},
    ],
    ids=["bytes", "Pillow", "verl's parts"],
)  # fmt: skip
def test_images_of_a_trainers_row_are_its_tasks(row: dict[str, Any]) -> None:
    """They were left out before, and the policy was asked about an image that it did not get."""
    task = task_of({**row, "data_source": "math", "reward_model": {"ground_truth": "1"}})
    msgspec.json.encode(task)
    plain, [given] = taken_out(task.payload)
    assert plain["prompt"][0]["content"] == "<image>?"
    assert bytes_of(given).data == drawn(9, 5)
