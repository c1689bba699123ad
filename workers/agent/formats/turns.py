"""Formats whose turns end in more than one way: what follows depends on how the last completion ended.

A delta is what the tokenizer's own template writes behind the model's words: rendered behind a stand-in of the turn
(the same calls by name and id, other words), it is found from the first token that ends a turn. Where the completion
has sampled that token, or one that means the same, the delta begins behind it; where it was cut inside the reasoning,
the reasoning is closed first, as the template closes it.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, ClassVar

from workers.agent.calls import Call
from workers.agent.formats.by_template import TemplateFormat
from workers.agent.formats.interface import Model
from workers.agent.hermes import Message, described, from_user
from workers.agent.template import ANSWER, USER, Conversation, TemplateError
from workers.agent.tools import TOOLS, Tool

_SYSTEM = {"role": "system", "content": "Be brief."}
_EARLIER: Conversation = [{"role": "user", "content": "And you?"}, {"role": "assistant", "content": "Yes."}]
_WORDS = ("wombat", "quokka")
_MAX_RESULTS = 64


class TurnFormat(TemplateFormat):
    """The base of such formats. `ends`: tokens that the template writes at the end of the model's turn."""

    ends: ClassVar[Sequence[str]]
    stops: ClassVar[Sequence[str]]  # tokens that end a completion, the usual end of an answer first
    closing: ClassVar[Sequence[str]] = ()  # sampled tokens that stand for any of `ends`
    system_first: ClassVar[bool] = True  # a system message does not move with the question
    rewrites: ClassVar[bool] = False  # the template moves what stood before, at a question: the record keeps it
    all_tools: ClassVar[bool] = False  # a question brings the tools again
    closes_reasoning: ClassVar[bool] = True
    example: ClassVar[str] = ""  # a call, where the template has results and calls but no place for definitions

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._ends = self._known(self.ends)
        self._closing = self.template.ids_of(self.closing)
        found = [token for token in (*self.stops, self.template.tokenizer.eos_token) if token]
        self.stop_ids = tuple(dict.fromkeys(self.template.added[each] for each in found if each in self.template.added))
        if not self.stop_ids:
            raise TemplateError(f"the vocabulary of {model.name} has none of {', '.join(self.stops)}: {self._whose()}")
        self._starts: dict[Sequence[str], tuple[list[int], int]] = {}
        asked = self.template.text(self.template.render([USER], generate=True))
        self.opens_reasoning = self.opens(asked[asked.rfind(USER["content"]) :])
        self._close_ids = self._reasoning_end() if self.closes_reasoning else []
        self._prove([Message(role="user", content=_WORDS[0])], ())
        self.tools_fault = self._fault_of_tools()

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        if self.example:
            messages = described(messages, tools, self.example)
        try:
            return self.template.render(self._plain(messages), tools, generate=True)
        except TemplateError:
            if all(message.role != "tool" for message in messages):
                raise
        return self.template.render(self._plain(from_user(messages)), tools, generate=True)  # results without calls

    def delta(self, tail: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        suffix = self._suffix(tail, messages, tools)
        if tail and (tail[-1] == suffix[0] or tail[-1] in self._closing):
            return suffix[1:]
        return [*(self._close_ids if self._is_reasoning(tail) else ()), *suffix]

    # What formats differ in.

    def name_of(self, call: Call) -> str:
        """The name under which a call is answered, also of one that could not be read."""
        return call.name or "unknown"

    def id_of(self, call: Call | None, place: int) -> str:
        """The id under which a call is answered."""
        del call
        return f"call{place:05d}"

    def called(self, calls: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """A stand-in of a turn with calls, of which names and ids are given."""
        return {"role": "assistant", "content": "", "tool_calls": [self.call(*each) for each in calls]}

    def call(self, name: str, call_id: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A call as the template takes it."""
        function = {"name": name, "arguments": dict(arguments or {"x": "1"})}
        return {"id": call_id, "type": "function", "function": function}

    def before(self, calls: Sequence[Call]) -> Conversation:
        """Messages to stand before the question, where what they hold is counted."""
        del calls
        return []

    # How the delta is found.

    def _suffix(
        self,
        tail: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
        earlier: Conversation | None = None,
    ) -> list[int]:
        """The template's ids behind the model's words when the messages come, up to where it writes again."""
        results = min(sum(message.role == "tool" for message in messages), _MAX_RESULTS)
        shown = tools if self.all_tools else tools[:1]  # it matters whether there are tools, seldom which
        calls = list(self.parse(tail).calls) if results else []
        named = [self._named(calls, place) for place in range(max(results, 1))]
        turn = self.called(named[:results] if results else named) if results else dict(ANSWER)
        start: Conversation = [*([dict(_SYSTEM)] if self.system_first else []), *(earlier or self.before(calls)), USER]
        return self._behind(start, turn, self._added(messages, named), shown)

    def _behind(
        self, start: Conversation, turn: dict[str, Any], added: Conversation, tools: Sequence[Tool]
    ) -> list[int]:
        full = self.template.render([*start, turn, *added], tools, generate=True)
        begun, kept = self._start(start, tools)
        if (place := _common(begun, full)) < kept:  # a template may show the day, which has changed since
            self._starts.clear()
            begun, kept = self._start(start, tools)
            place = _common(begun, full)
        if place < kept and not self.rewrites:
            raise TemplateError(
                f"the chat template of {self.template.name} is not append-only: adding a {added[0]['role']} message "
                "changes what came before it. Use a template that keeps earlier messages as they were"
            )
        end = next((at for at in range(place, len(full)) if full[at] in self._ends), None)
        if end is None:
            raise TemplateError(f"the chat template of {self.template.name} ends no turn with {' or '.join(self.ends)}")
        if turn["content"] not in self.template.text(full[place:end]):
            raise TemplateError(f"the chat template of {self.template.name} does not show the assistant's last message")
        return full[end:]

    def _start(self, start: Conversation, tools: Sequence[Tool]) -> tuple[list[int], int]:
        """The ids of a conversation up to where the model writes, and how many a longer one must begin with."""
        key = (str(start), *(tool.name for tool in tools))
        if key not in self._starts:
            begun = self.template.render(start, tools, generate=True)
            kept = _common(begun, self.template.render(start, tools, generate=False))
            if len(self._starts) > 64:
                self._starts.clear()
            self._starts[key] = begun, kept
        return self._starts[key]

    def _named(self, calls: Sequence[Call], place: int) -> tuple[str, str]:
        call = calls[place] if place < len(calls) else None
        return ("unknown" if call is None else self.name_of(call)), self.id_of(call, place)

    def _added(self, messages: Sequence[Message], named: Sequence[tuple[str, str]]) -> Conversation:
        """New messages as the template takes them. None of them can pass for a marker."""
        added: Conversation = []
        results = 0
        for message in messages:
            said: dict[str, Any] = {"role": message.role, "content": self.template.defused(message.content)}
            if message.role == "tool":
                name, call_id = named[min(results, len(named) - 1)]
                said |= {"name": name, "tool_call_id": call_id}
                results += 1
            added.append(said)
        return added

    def _plain(self, messages: Sequence[Message]) -> Conversation:
        """A prompt's messages: those of tools have no calls before them that could give them names."""
        found: Conversation = []
        for message in messages:
            is_result = message.role == "tool"
            content = self.template.defused(message.content) if is_result else message.content
            about = {"name": "unknown", "tool_call_id": self.id_of(None, len(found))} if is_result else {}
            found.append({"role": message.role, "content": content, **about})
        return found

    def _is_reasoning(self, tail: Sequence[int]) -> bool:
        """True if a completion ends inside its reasoning."""
        opening, closing = self.think
        pieces = self.pieces(tail)
        inside = self.opened(pieces, ended=False)
        for is_marker, piece in pieces:
            if is_marker and piece in (opening, closing, self.calls.markers[0]):
                inside = piece == opening
        return inside

    def _reasoning_end(self) -> list[int]:
        """The template's ids between a thought and the end of a turn that has no more."""
        thought = {"role": "assistant", "content": "", "reasoning_content": _WORDS[0], "thinking": _WORDS[0]}
        try:
            written = self.template.text(self.template.render([USER, thought], generate=False))
        except TemplateError:
            written = ""
        _, found, rest = written.rpartition(_WORDS[0])
        closing = self.think[1]
        if not found or closing not in rest:
            return self.encode(closing)
        ends = [rest.find(end) for end in self.ends if end in rest]
        return self.encode(rest[: min(ends)] if ends else rest)

    # What is proved before a format is used.

    def _fault_of_tools(self) -> TemplateError | None:
        if not self.template.takes_tools and not self.example:
            return TemplateError(f"the chat template of {self.template.name} has no place for tools")
        tools = list(TOOLS.values())
        try:
            for words in (_WORDS[:1], _WORDS):
                self._prove([Message(role="tool", content=word) for word in words], tools)
            self._read_back(tools)
        except TemplateError as error:
            return error
        return None

    def _prove(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Messages add the same after a short and a long conversation, with each message's text in it once."""
        short = self._suffix([], messages, tools)
        text, role = self.template.text(short), messages[0].role
        if any(text.count(message.content) != 1 for message in messages):
            raise TemplateError(
                f"the chat template of {self.template.name} does not show each of {len(messages)} {role} messages "
                f"once: it writes {self.template.quoted(short)}"
            )
        if self._suffix([], messages, tools, list(_EARLIER)) != short:
            raise TemplateError(
                f"the chat template of {self.template.name} is not append-only: what a {role} message adds depends on "
                "what was said before"
            )

    def _read_back(self, tools: Sequence[Tool]) -> None:
        """A call that the template writes must be read as that call."""
        if "tool_calls" not in self.template.source:
            return
        turn = self.called([("think", self.id_of(None, 0))])
        turn["tool_calls"] = [self.call("think", self.id_of(None, 0), {"thought": "x"})]
        begun = self.template.render([USER], tools, generate=True)
        called = self.template.render([USER, turn], tools, generate=False)
        written = called[_common(begun, called) :]
        if [(call.name, call.arguments) for call in self.parse(written, tools).calls] != [("think", {"thought": "x"})]:
            raise TemplateError(
                f"the chat template of {self.template.name} writes tool calls in a form that the format {self.name!r} "
                f"does not read: {self.template.quoted(written)}"
            )

    def _known(self, tokens: Sequence[str]) -> frozenset[int]:
        found = self.template.ids_of(tokens)
        if not found:
            raise TemplateError(f"the vocabulary of {self.model.name} has none of {', '.join(tokens)}: {self._whose()}")
        return found

    def _whose(self) -> str:
        return f"is this the tokenizer of a model of the format {self.name!r}?"


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of what two sequences have in common at their start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
