"""Calls are read as the template writes them, with the types of their tool; wrong ones say how to write them."""

from typing import Annotated, Any

import pytest
from msgspec import Meta

from tests.formats.conversations import CALLED, TOOL_LIST, Talk, calling
from tests.formats.models import MODELS, Known, renderer
from tests.formats.test_ids import ONE_CALL
from workers.agent.hermes import Message
from workers.agent.parser import Parsed
from workers.agent.template import TemplateError
from workers.agent.tools import TOOLS, Arguments, Tool

TOOLED = [known for known in MODELS if known.has_tools]
THINKING = [known for known in TOOLED if known.thinking not in {"–", "off"} and known.format != "command_a"]
every_tooled = pytest.mark.parametrize("known", TOOLED, ids=lambda known: known.name)


class Typed(Arguments, frozen=True, kw_only=True):
    """Takes one of each."""

    text: Annotated[str, Meta(description="Text.")]
    count: int
    flag: bool
    numbers: list[int]
    more: dict[str, Any]


TYPED = Tool(name="typed", description="Takes one of each.", arguments=Typed, run=TOOLS["think"].run)
GIVEN = {"text": "7", "count": 3, "flag": True, "numbers": [1, 2], "more": {"a": "b", "c": None}}


def read(name: str, text: str, tools: Any = TOOL_LIST) -> Parsed:
    made = renderer(name)
    return made.parse(made.ids(text), tools)


@every_tooled
def test_what_the_template_writes_of_calls_is_read_as_these_calls(known: Known) -> None:
    made = Talk(known)
    count = 1 if known.model in ONE_CALL else 2
    words, _ = made._sampled(calling(known, count), [{"role": "tool"}])
    found = made.made.parse(words, made.tools).calls
    assert [(call.name, call.arguments, call.error) for call in found] == [
        (name, given, None) for name, given, *_ in CALLED[:count]
    ]


@every_tooled
def test_arguments_have_the_types_that_the_tool_takes(known: Known) -> None:
    """LFM's template writes a nested null as JSON does; its calls are Python, where JSON's words are taken as well."""
    made = Talk(known)
    turn = calling(known, 1)
    function = turn["tool_calls"][0]["function"]
    given = (
        GIVEN
        if known.format != "deepseek_v3"
        else '{"text": "7", "count": 3, "flag": true, "numbers": [1, 2], "more": {"a": "b", "c": null}}'
    )
    function |= {"name": "typed", "arguments": given}
    words, _ = made._sampled(turn, [{"role": "tool"}])
    [call] = made.made.parse(words, [TYPED]).calls
    assert (call.name, call.arguments, call.error) == ("typed", GIVEN, None)


@pytest.mark.parametrize("known", THINKING, ids=lambda known: known.name)
def test_a_thought_is_no_text_and_text_no_thought(known: Known) -> None:
    made = Talk(known)
    turn = {"role": "assistant", "content": "It is 42.", "reasoning_content": "counting", "thinking": "counting"}
    words, end = made._sampled(turn, [{"role": "user"}])
    parsed = made.made.parse([*words, end], made.tools)
    assert (parsed.reasoning, parsed.text, list(parsed.calls)) == ("counting", "It is 42.", [])


WRONG = {
    "Qwen3.6": "</think><tool_call>\n<function=think>\n<parameter=thought>\nx\n</function>\n</tool_call>",
    "GLM-4.5": "<tool_call>think\n<arg_key>thought</arg_key>\n<arg_value>x</tool_call>",
    "Gemma 4": '<|tool_call>call:think{thought:<|"|>x<|"|><tool_call|>',
    "gpt-oss": " to=functions.think<|channel|>commentary json<|message|>{thought<|call|>",
    "LFM2": "<|tool_call_start|>[think('x')]<|tool_call_end|>",
    "Mistral v3 tekken": '[TOOL_CALLS][{"name": "think", "arguments": ]',
    "DeepSeek-V3": "</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>think\n```json\n{x\n```",
    "Command-A": '<|START_ACTION|>[{"tool_name": "think"<|END_ACTION|>',
    "Llama 4, date_string=1 Jan 2026": '<|python_start|><|python_end|>{"name": "think", "parameters": }',
}


@pytest.mark.parametrize("name", WRONG)
def test_a_call_that_cannot_be_read_says_how_to_write_it(name: str) -> None:
    [call] = read(name, WRONG[name]).calls
    assert call.error is not None
    assert "Write" in call.error


@pytest.mark.parametrize("name", ["Gemma 4", "gpt-oss"])
def test_a_call_that_cannot_be_read_is_answered_under_its_name(name: str) -> None:
    made = renderer(name)
    delta = made.after(made.ids(WRONG[name]), [Message(role="tool", content="Error")], TOOL_LIST)
    assert "think" in made.text(delta)


def test_command_a_numbers_results_as_the_model_numbered_its_calls() -> None:
    made = renderer("Command-A")
    text = '<|START_ACTION|>[{"tool_call_id": "3", "tool_name": "think", "parameters": {"thought": "x"}}]<|END_ACTION|>'
    delta = made.after(made.ids(text), [Message(role="tool", content="noted")], TOOL_LIST)
    assert '"tool_call_id": "3"' in made.text(delta)


def test_a_value_that_spells_a_parameter_is_that_value() -> None:
    text = "a\n<parameter=b>\nc</parameter> d"
    written = (
        f"</think><tool_call>\n<function=think>\n<parameter=thought>\n{text}\n</parameter>\n</function>\n</tool_call>"
    )
    [call] = read("Qwen3.6", written).calls
    assert call.arguments == {"thought": text}


def test_tools_are_refused_with_the_reason_where_a_template_has_no_place_for_them() -> None:
    made = renderer("Phi-3.5")
    question = [Message(role="user", content="How many?")]
    assert made.prompt(question)
    with pytest.raises(TemplateError, match=r"Phi-3\.5 has no place for tools\. None of the formats"):
        made.prompt(question, TOOL_LIST)


@every_tooled
def test_what_a_tool_prints_cannot_end_a_turn(known: Known) -> None:
    made = renderer(known.name)
    hostile = "".join(made._template.added)
    special = frozenset(made._template.added.values())
    deltas = [made.delta([Message(role="tool", content=text)], TOOL_LIST) for text in ("42", hostile)]
    harmless, found = ([token for token in delta if token in special] for delta in deltas)
    assert found == harmless
