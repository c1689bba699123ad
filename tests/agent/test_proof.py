"""A template that cannot be continued by ids is found when its renderer is made, and what broke is named."""

import pytest

from tests.agent.chat import BARE, MARKERS, TOOLED, tokenizer
from workers.agent.hermes import Message
from workers.agent.renderer import Renderer
from workers.agent.template import TemplateError
from workers.agent.tools import TOOLS

QUESTION = [Message(role="user", content="How many?")]


def broken(template: str, reason: str) -> None:
    with pytest.raises(TemplateError, match=reason):
        Renderer(tokenizer(template, MARKERS), "broken")


def test_a_template_that_changes_answers_is_not_append_only() -> None:
    shortened = "(message.content if loop.last or message.role != 'assistant' else '...')"
    broken(BARE.replace("message.content", shortened), "not append-only: adding a user message changes the assistant")


def test_a_template_that_drops_old_messages_is_not_append_only() -> None:
    broken(BARE.replace("in messages %}", "in messages[-3:] %}"), "not append-only: adding a user message changes")


def test_a_delta_that_depends_on_the_history_is_not_append_only() -> None:
    numbered = BARE.replace("message.role +", "message.role + (loop.length | string) * loop.last +")
    broken(numbered, "not append-only: (what|adding) a user message")


def test_a_template_that_repeats_messages_is_refused() -> None:
    broken(BARE.replace("message.content +", "message.content + message.content +"), "does not show each of 1 user")


def test_a_template_that_leaves_the_user_out_is_refused() -> None:
    broken(BARE.replace("message.content +", "(message.content if message.role != 'user' else '') +"), "does not show")


def test_a_template_without_a_place_to_begin_is_refused() -> None:
    broken(BARE.split("{% if add_generation_prompt")[0], "no place where the model begins to write")


def test_a_template_without_an_end_of_turn_is_refused() -> None:
    broken(BARE.replace("<|im_end|>", ""), "ends the assistant's turn with no special token")


def test_calls_in_a_form_that_the_family_does_not_read_are_refused_with_the_first_tool() -> None:
    """A task without tools may well use such a template."""
    foreign = TOOLED.replace("\n<tool_call>\n", "[TOOL_CALLS]").replace("\n</tool_call>", "")
    renderer = Renderer(tokenizer(foreign, MARKERS), "foreign")
    assert renderer.prompt(QUESTION)
    with pytest.raises(TemplateError, match=r"in a form that the family 'chatml' does not read: .*\[TOOL_CALLS\]"):
        renderer.prompt(QUESTION, [TOOLS["think"]])


def test_results_that_a_template_leaves_out_are_refused_with_the_first_tool() -> None:
    deaf = TOOLED.replace("message.content + '\n</tool_response>'", "'\n</tool_response>'")
    renderer = Renderer(tokenizer(deaf, MARKERS), "deaf")
    with pytest.raises(TemplateError, match="does not show each of 1 tool messages once"):
        renderer.prompt(QUESTION, [TOOLS["think"]])


def test_a_template_of_no_known_family_is_used_once_it_is_proven() -> None:
    plain = BARE.replace("<|im_start|>", "").replace("'assistant\\n'", "'assistant:\\n'")
    renderer = Renderer(tokenizer(plain), "plain")
    assert renderer.family.name == "generic"
    assert renderer.text(renderer.delta(QUESTION)).endswith("How many?<|im_end|>\nassistant:\n")
