"""The ids that stand for images are those of the model's own processor, one run for each, in order."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_mq.schema.images.pixels import ImageExtraMissing
from prorl_mq.schema.images.placed import Misplaced, PlacedImage, check_placed
from prorl_mq.schema.images.rows import MARK
from tests.agent.chat import tooled
from tests.pictures.seeing import picture, processor, seeing_renderer
from workers.agent import renderer as rendering
from workers.agent.hermes import Message
from workers.agent.pictures import messages as pictured
from workers.agent.pictures import vision
from workers.agent.pictures.messages import MarksMismatched, attached, logged, unlogged
from workers.agent.pictures.vision import ImagesMismatched, NoVision
from workers.agent.renderer import Renderer
from workers.agent.tools import TOOLS
from workers.inference.pictures import collapsed

SIZES = [(300, 150), (60, 60), (150, 300), (28, 28), (1200, 900), (61, 59)]
IMAGES = [picture(*size) for size in SIZES]
SYSTEM = Message(role="system", content="Look.")


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return seeing_renderer()


@given(
    numbers=st.lists(st.integers(0, len(IMAGES) - 1), max_size=5),
    texts=st.lists(st.text("ab \n<>", max_size=6), min_size=6, max_size=6),
    tools=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_ids_are_those_that_the_processor_makes_of_the_whole_conversation(
    renderer: Renderer, numbers: list[int], texts: list[str], tools: bool
) -> None:
    images = [IMAGES[each] for each in numbers]
    content = "".join(text + MARK for text in texts[: len(images)]) + "?"
    content = content if content.count(MARK) == len(images) else MARK * len(images)
    messages = attached([SYSTEM, Message(role="user", content=content)], images)
    offered = list(TOOLS.values()) if tools else []
    opening = renderer.opening(messages, offered)
    parts: list[dict[str, str]] = []
    for place, text in enumerate(content.split(MARK)):
        parts += [{"type": "image"}] if place else []
        parts += [{"type": "text", "text": text}] if text else []
    template = renderer._template
    told = [{"role": "system", "content": "Look."}, {"role": "user", "content": parts}]
    text = template.tokenizer.apply_chat_template(
        told, tools=[tool.schema() for tool in offered] or None, tokenize=False, add_generation_prompt=True
    )
    whole = processor(template.tokenizer)(text=[text], images=[_pillow(each) for each in images] or None)
    assert opening.ids == whole["input_ids"][0]
    grids = whole["image_grid_thw"] if images else []
    assert [each.length for each in opening.pictures] == [int(grid[1] * grid[2] // 4) for grid in grids]
    assert [each.image for each in opening.pictures] == images
    if images:
        assert collapsed(opening.ids, opening.pictures).count(opening.pictures[0].pad) == len(images)
        placed = [PlacedImage(image=0, start=each.start, length=each.length) for each in opening.pictures]
        check_placed(opening.ids, [], placed, 1, opening.pictures[0].pad)


def _pillow(image: Any) -> Any:
    from prorl_mq.schema.images.pixels import decoded

    return decoded(image)


def test_a_text_that_holds_the_token_is_refused(renderer: Renderer) -> None:
    """The control: with the token spelt otherwise, it is asked."""
    for told, works in (("<|image_pad|>", False), ("<|image pad|>", True)):
        messages = attached([Message(role="user", content=f"{told} {MARK}")], IMAGES[:1])
        if works:
            assert renderer.opening(messages).pictures
        else:
            with pytest.raises(ImagesMismatched, match="1 images, and its ids have 2 places"):
                renderer.opening(messages)


def test_a_processor_that_fails_is_loaded_once_a_minute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Others wait for it meanwhile. The control: a minute later it is loaded again, and then kept."""
    made, fails, loads = seeing_renderer(), [True], [0]
    found, made._vision, made._directory = made.vision(), None, tmp_path
    now = [1000.0]

    def load(*_: object) -> Any:
        loads[0] += 1
        if fails[0]:
            raise ImageExtraMissing("no torchvision")
        return found

    monkeypatch.setattr(vision, "load", load)
    monkeypatch.setattr(rendering, "monotonic", lambda: now[0])
    for _ in range(3):
        with pytest.raises(ImageExtraMissing, match="no torchvision"):
            made.vision()
    assert loads == [1]
    now[0] += rendering.BLIND_S
    with pytest.raises(ImageExtraMissing):
        made.vision()
    assert loads == [2]
    fails[0] = False
    now[0] += rendering.BLIND_S
    assert made.vision() is made.vision() is found
    assert loads == [3]


def test_text_alone_is_rendered_as_by_a_model_without_vision(renderer: Renderer) -> None:
    messages = [SYSTEM, Message(role="user", content=f"What is {MARK}?")]
    text = tooled()
    assert renderer.text(renderer.opening(messages).ids) == text.text(text.opening(messages).ids)
    assert not renderer.opening(messages).pictures


def test_a_model_without_vision_refuses_images_by_name() -> None:
    messages = attached([Message(role="user", content=MARK)], IMAGES[:1])
    with pytest.raises(NoVision, match="is no model's directory"):
        tooled().opening(messages)


def test_a_model_whose_directory_has_no_processor_refuses_images(tmp_path: Path) -> None:
    with pytest.raises(NoVision, match=r"the model text takes none: processor_config.json or preprocessor_config.json"):
        vision.load(tmp_path / "text", seeing_renderer()._template)


def test_a_worker_without_the_libraries_says_which_extra_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "processor_config.json").write_text("{}")

    def missing(*_: object, **__: object) -> None:
        raise ImportError("Qwen2VLProcessor requires the Torchvision library")

    monkeypatch.setattr("transformers.AutoProcessor.from_pretrained", missing)
    with pytest.raises(ImageExtraMissing, match=r"install prorl-mq\[images\].*Torchvision"):
        vision.load(tmp_path, seeing_renderer()._template)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image_token": None}, "names no token"),
        ({"image_token": "<|picture|>"}, "names no token"),
        ({"image_token": "<|vision_start|>", "image_token_id": 0}, "Mismatch in `image` token count"),
    ],
)
def test_a_processor_that_does_not_fit_its_template_is_refused_before_any_task(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(NoVision, match=said):
        seeing_renderer(**changes)


def test_one_that_moves_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some templates write all images in front of the text, in another order or once."""
    monkeypatch.setattr(
        pictured, "in_parts", lambda message: {**message, "content": message["content"].replace(pictured.PLACE, "")}
    )
    monkeypatch.setattr("workers.agent.template.in_parts", pictured.in_parts)
    with pytest.raises(NoVision, match="0 places"):
        seeing_renderer()


def test_marks_and_images_must_be_as_many() -> None:
    asked = [Message(role="user", content=f"{MARK} and {MARK}")]
    assert attached(asked, []) == asked
    with pytest.raises(MarksMismatched, match="3 images, and what is asked has 2 times"):
        attached(asked, IMAGES[:3])


def test_messages_with_images_come_back_from_a_log() -> None:
    told = attached([SYSTEM, Message(role="user", content=f"{MARK}{MARK}")], [IMAGES[2], IMAGES[0]])
    assert unlogged(logged(told, IMAGES), IMAGES) == told
    with pytest.raises(ValueError, match="shows an image that the rollout did not begin with"):
        logged(told, IMAGES[:1])


@pytest.mark.parametrize(
    ("placed", "said"),
    [
        ([], "token 2 stands for an image"),
        ([(0, 2, 2)], "token 5 stands for an image"),
        ([(0, 2, 2), (1, 5, 1)], "image 1 of 1"),
        ([(0, 5, 1), (0, 2, 2)], "token 2 stands|after token"),
        ([(0, 2, 2), (0, 5, 9)], "after token 4 of 7"),
        ([(0, 2, 2), (0, 6, 1)], "token 5 stands for an image"),
        ([(0, 0, 1), (0, 2, 2), (0, 5, 1)], "none of its ids is 9"),
    ],
)
def test_places_that_do_not_fit_the_ids_are_found(placed: list[tuple[int, int, int]], said: str) -> None:
    """The control: those that do, pass."""
    ids = [1, 2, 9, 9, 3, 9, 4]
    check_placed(ids, [0], [PlacedImage(image=0, start=2, length=2), PlacedImage(image=0, start=5, length=1)], 1, 9)
    with pytest.raises(Misplaced, match=said):
        check_placed(ids, [0], [PlacedImage(image=a, start=b, length=c) for a, b, c in placed], 1, 9)
    with pytest.raises(Misplaced, match="was sampled"):
        check_placed(
            ids, [1, 0], [PlacedImage(image=0, start=2, length=2), PlacedImage(image=0, start=5, length=1)], 1, 9
        )
