"""A model's format is found by what it shows, or by its type; other packages' formats are asked first."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.formats.__main__ import lines
from tests.formats.models import MODELS, Known, renderer, tokenizer
from tests.formats.plugin import ROOT, package
from workers.agent.formats.registry import BUILT_IN, known
from workers.agent.loading import load_renderer
from workers.agent.renderer import Renderer
from workers.agent.template import TemplateError
from workers.rehearsal.policy import BARE
from workers.rehearsal.policy import tokenizer as bytewise


@pytest.mark.parametrize("known", MODELS, ids=lambda known: known.name)
def test_the_format_is_found_by_what_the_model_shows(known: Known) -> None:
    assert renderer(known.name).family.name == known.format


def test_every_format_is_proved_on_a_model() -> None:
    assert {known.format for known in MODELS} == {each.name for each in BUILT_IN}


@pytest.mark.anyio
async def test_a_model_whose_template_shows_nothing_is_known_by_its_type(tmp_path: Path) -> None:
    gpt = next(known for known in MODELS if known.format == "gpt_oss")
    made = tokenizer(gpt)
    made.chat_template = made.chat_template.replace("commentary", "remarks")
    made.save_pretrained(tmp_path)
    with pytest.raises(TemplateError):
        await load_renderer(tmp_path)
    (tmp_path / "typed").mkdir()
    made.save_pretrained(tmp_path / "typed")
    (tmp_path / "typed/config.json").write_bytes(msgspec.json.encode({"model_type": "gpt_oss"}))
    assert (await load_renderer(tmp_path / "typed")).family.name == "gpt_oss"


def test_a_type_without_the_vocabulary_of_its_format_chooses_nothing() -> None:
    """Kimi has DeepSeek's `model_type`, and tokens of its own."""
    made = bytewise(BARE.replace("<|im_start|>", ""))
    assert Renderer(made, "kimi", model_type="deepseek_v3").family.name == "generic"


def test_a_template_of_the_wrong_format_names_the_one_that_works() -> None:
    made = tokenizer(next(known for known in MODELS if known.model == "Qwen3.6"))
    refused = Renderer(made, "qwen", family="chatml").tools_fault
    assert "The format 'qwen_xml' works: set PRORL_RENDERER=qwen_xml" in str(refused)


def looked(directory: Path, *places: Path) -> subprocess.CompletedProcess[str]:
    """Result of `doctor`'s look at a tokenizer, in a process that finds packages at these places."""
    path = os.pathsep.join([*map(str, places), str(ROOT), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, "PRORL_TOKENIZER": str(directory)}
    argv = [sys.executable, "-m", "workers.agent"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def shouting(tmp_path: Path) -> Path:
    """A model that shouts."""
    made = bytewise(BARE, ["<shout>", "</shout>", "<|over|>"])
    made.chat_template = (
        "{% for message in messages %}{{ message.role + ':' + message.content }}"
        "{% for call in message.tool_calls or [] %}<shout>CALL {{ call.function.name }} "
        "{{ call.function.arguments.values() | first }}</shout>{% endfor %}<|over|>{% endfor %}"
        "{% if tools %}{# said elsewhere #}{% endif %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    made.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.process
@pytest.mark.slow
def test_the_page_s_example_is_a_format(shouting: Path, tmp_path: Path) -> None:
    (tmp_path / "plugin").mkdir()
    found = looked(shouting, package(tmp_path / "plugin"))
    assert (found.returncode, found.stdout.strip()) == (0, f"{shouting}: model format shouting, with tools"), found
    assert "shouting" not in looked(shouting).stdout.replace(str(shouting), "")


def test_the_page_has_the_table_of_the_models_that_are_proved() -> None:
    page = (ROOT / "docs/reference/formats.md").read_text()
    missing = [line for line in lines() if line not in page]
    assert not missing, "paste the output of `python -m tests.formats`"


@pytest.mark.process
@pytest.mark.slow
def test_a_format_that_cannot_be_loaded_is_named(shouting: Path, tmp_path: Path) -> None:
    (tmp_path / "plugin").mkdir()
    found = looked(shouting, package(tmp_path / "plugin", "shouting:Whispering"))
    assert found.returncode == 1
    assert "the model format 'shouting' (shouting:Whispering) cannot be loaded" in found.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0", "(other:Other) cannot be loaded: ZeroDivisionError: division by zero; correct or uninstall"),
        ("Other = 7", "(other:Other) is no class with a method `fits`"),
        ("class Other:\n  def fits(model): return model.nothing", "cannot say whether it fits model: AttributeError"),
        ("class Other:\n  def fits(): return True", "cannot say whether it fits model: TypeError"),
        ("class Other:\n  def fits(model): return True", "the model format 'other' raises TypeError: Other() takes no"),
        (
            "class Other:\n  name = stop_ids = prompt = 0\n  fits = staticmethod(bool)\n  __init__ = lambda *_: None",
            "the model format 'other' lacks delta, parse",
        ),
    ],
    ids=["import", "no class", "fits raises", "fits takes nothing", "made of nothing", "a part is missing"],
)
def test_a_format_of_another_package_that_is_broken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    (tmp_path / "other.py").write_text(text)
    metadata = tmp_path / "prorl_other-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: prorl-other\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[prorl_mq.formats]\nother = other:Other\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "other", raising=False)
    known.cache_clear()
    try:
        with pytest.raises(TemplateError) as fault:
            Renderer(bytewise(BARE), "model")
    finally:
        known.cache_clear()
        sys.modules.pop("other", None)
    assert said in str(fault.value)
