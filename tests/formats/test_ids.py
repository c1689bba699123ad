"""Prompts put together from ids are what the model's own template writes of the conversation, id by id."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.agent.vocabularies import qwen
from tests.formats.conversations import ANSWER, THOUGHT, Talk, answering, asked, calling, results
from tests.formats.models import MODELS, Known, renderer, template
from workers.agent.formats.turns import TurnFormat
from workers.agent.renderer import Renderer

AFTER = ("results", "parallel results", "a question", "a question after results")
ONE_CALL = {"Llama 3.2", "gpt-oss"}  # whose templates write one call a turn


def talk(known: Known, after: str, ending: str, thought: str, made: Renderer | None = None) -> Talk:
    """The conversation: turns that end as they are told to, each followed by what it is named for."""
    told = Talk(known, made)
    if "results" in after:
        count = 2 if after.startswith("parallel") else 1
        told.say(calling(known, count, thought), results(count), ending)
    if after.startswith("a question"):
        turn = answering("", thought) if ending == THOUGHT else answering(ANSWER, thought)
        told.say(turn, asked(), ending)
    return told


def endings(known: Known, after: str) -> Sequence[tuple[str, str]]:
    """Each way to end a turn, without and with a thought before it."""
    thinks = known.thinking not in {"–", "off"}
    ways = ["clean", "cut", *(["other"] if len(renderer(known.name).stop_ids) > 1 else [])]
    found = list(itertools.product(ways, ["", THOUGHT] if thinks else [""]))
    inside = thinks and after == "a question" and known.format != "command_a"  # whose answers have no thought
    return [*found, (THOUGHT, THOUGHT)] if inside else found


def cases() -> Iterator[Any]:
    """Every model with what its template can write."""
    for known in MODELS:
        for after in AFTER:
            one_call = after.startswith("parallel") and known.model in ONE_CALL
            if (known.has_tools or "results" not in after) and not one_call:
                yield pytest.param(known, after, id=f"{known.name}-{after}")


@pytest.mark.parametrize("all_special", [False, True], ids=["flags", "all special"])
@pytest.mark.parametrize(("known", "after"), list(cases()))
def test_ids_are_those_of_the_template(known: Known, after: str, all_special: bool) -> None:
    """Whatever the `special` flags of added tokens: they differ between releases of one model."""
    for ending, thought in endings(known, after):
        made = talk(known, after, ending, thought, renderer(known.name, all_special=all_special))
        assert made.as_template() == made.theirs(), (ending, thought)


def test_with_the_tail_left_out_of_account_the_ids_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what the comparison is there to find."""
    wrong: list[str] = []
    whole = TurnFormat.delta
    monkeypatch.setattr(TurnFormat, "delta", lambda made, _, *rest: whole(made, [], *rest))
    for known in MODELS:
        made = talk(known, AFTER[2], "clean", "")
        wrong += [known.format] if made.as_template() != made.theirs() else []
    turned = {known.format for known in MODELS} - {"chatml", "llama3", "generic"}
    assert set(wrong) == turned


@pytest.mark.parametrize("file", ["qwen3_6.jinja", "nemotron_3_nano.jinja"])
def test_ids_of_a_vocabulary_that_merges_are_those_of_the_template(file: str) -> None:
    """With Qwen's real vocabulary. An empty thought is left out: its line breaks merge with that of the prompt."""
    known = next(each for each in MODELS if each.file == file)
    vocabulary = qwen("qwen3")
    vocabulary.chat_template = template(known)
    renders = Renderer(vocabulary, known.model, known.options or None)
    for after in AFTER:
        for ending, thought in endings(known, after):
            if not thought:
                continue
            made = talk(known, after, ending, thought, renders)
            assert made.as_template() == made.theirs(), (after, ending, thought)
