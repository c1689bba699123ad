"""Proves, before a renderer is used, that a chat template can be continued by ids. What broke is named.

The template is tried on conversations that no model wrote. What a new message adds must be the same after a short and
after a long conversation and with one tool and with many, hold the message's text once, and change nothing that came
before. One change is known and
let pass: a template that drops the reasoning of earlier answers. The record keeps what was sampled, so the model goes
on seeing it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from workers.agent.deltas import Deltas, call
from workers.agent.hermes import Message
from workers.agent.parser import Parsed
from workers.agent.template import ANSWER, USER, TemplateError
from workers.agent.tools import TOOLS, Tool

_WORDS = ("wombat", "quokka")
_EARLIER: Sequence[dict[str, Any]] = ({"role": "user", "content": "And you?"}, {"role": "assistant", "content": "Yes."})


def prove_messages(deltas: Deltas) -> None:
    """Tries questions of the user. Raises `TemplateError`."""
    question = [Message(role="user", content=_WORDS[0])]
    after_turn = [deltas.end_of_turn, *_steady(deltas, question, ())]
    answered = deltas.bases(question, ())[0]
    full = deltas.template.render([*answered, *deltas.new(question)], generate=True)
    if full[-len(after_turn) :] != after_turn or ANSWER["content"] not in deltas.template.text(full):
        raise deltas.rewritten("user", "the assistant's message before it")


def prove_tools(deltas: Deltas, parse: Callable[[Sequence[int]], Parsed], family: str) -> TemplateError | None:
    """Fault in the template's use of tools, if there is one: it matters only to tasks that have some."""
    tools = list(TOOLS.values())
    try:
        for words in (_WORDS[:1], _WORDS):
            _steady(deltas, [Message(role="tool", content=word) for word in words], tools)
        if deltas.template.takes_tools:
            _reads_back(deltas, parse, family, tools)
    except TemplateError as error:
        return error
    return None


def _steady(deltas: Deltas, added: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
    """The delta of messages, the same whatever stood before, with each message's text in it once."""
    delta = deltas.of(added, tools)
    name, text, role = deltas.template.name, deltas.template.text(delta), added[0].role
    if any(text.count(message.content) != 1 for message in added):
        raise TemplateError(
            f"the chat template of {name} does not show each of {len(added)} {role} messages once: it writes "
            f"{deltas.template.quoted(delta)}"
        )
    for base in deltas.bases(added, tools, _EARLIER):
        try:
            later = deltas.difference(base, deltas.new(added), tools)
        except TemplateError:
            continue
        whole = deltas.template.render([*base, *deltas.new(added)], tools, generate=True)
        if later == delta and whole[-1 - len(delta) :] == [deltas.end_of_turn, *delta]:
            return delta
        raise TemplateError(
            f"the chat template of {name} is not append-only: what a {role} message adds depends on what was said "
            f"before: {deltas.template.quoted(delta)} after a short conversation, {deltas.template.quoted(later)} "
            "after a long one"
        )
    raise deltas.rewritten(role, "what came before it, once the conversation is long")


def _reads_back(deltas: Deltas, parse: Callable[[Sequence[int]], Parsed], family: str, tools: Sequence[Tool]) -> None:
    """A call that the template writes must be read as that call: else the family is the wrong one."""
    calling = {"role": "assistant", "content": "", "tool_calls": [call("think", {"thought": "x"})]}
    asked = deltas.template.render([USER], tools, generate=True)
    called = deltas.template.render([USER, calling], tools, generate=False)
    same = [one == other for one, other in zip(asked, called, strict=False)]
    written = called[same.index(False) if False in same else len(same) :]
    if [(found.name, found.arguments) for found in parse(written).calls] != [("think", {"thought": "x"})]:
        raise TemplateError(
            f"the chat template of {deltas.template.name} writes tool calls in a form that the family {family!r} does "
            f"not read: {deltas.template.quoted(written)}"
        )
