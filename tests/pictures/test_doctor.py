"""What `doctor` says of a model with vision: its processor is loaded, since a RUN worker will."""

from pathlib import Path

from tests.agent.chat import MARKERS, TOOLED, tokenizer
from tests.pictures.seeing import seeing_renderer
from workers.agent.__main__ import _told
from workers.agent.renderer import Renderer


def test_a_processor_that_cannot_be_loaded_is_named_with_the_reason(tmp_path: Path) -> None:
    """The files alone were taken for it, and every job with images failed. The control: one that loads."""
    (tmp_path / "processor_config.json").write_text("{}")
    told = _told(Renderer(tokenizer(TOOLED, MARKERS), "blind", directory=tmp_path))
    assert "; tasks with images fail: the image processor of" in told
    assert _told(seeing_renderer()) == "model format chatml, with images, with tools"
