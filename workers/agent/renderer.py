"""Renderer for one model's tokenizer and chat template: prompts and deltas as ids, completions as meaning.

Only the first prompt is rendered whole; nothing that a model wrote is ever rendered. The template proves itself when
the renderer is made (`workers.agent.proof`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from workers.agent import parser
from workers.agent.deltas import Deltas
from workers.agent.families import family_of
from workers.agent.hermes import Message
from workers.agent.proof import prove_messages, prove_tools
from workers.agent.template import ChatTemplate
from workers.agent.tools import Tool


class Renderer:
    """One model's renderer. Get it from `workers.agent.loading`: cached, and made off the event loop.

    Raises `TemplateError` for a template that cannot be continued by ids.
    """

    def __init__(
        self, tokenizer: Any, name: str, options: Mapping[str, Any] | None = None, family: str | None = None
    ) -> None:
        self.name = name
        self._template = ChatTemplate(tokenizer, name, options)
        self._deltas = Deltas(self._template)
        self.family = family_of(self._template.source, family)
        self.end_of_turn = self._template.end_of_turn
        self.closing_ids = self._template.ids_of(self.family.closing) | {self.end_of_turn}
        others = self.closing_ids | self._template.ids_of([*self.family.stops, tokenizer.eos_token])
        self.stop_ids = (self.end_of_turn, *sorted(others - {self.end_of_turn}))
        markers = (parser.THINK, parser.END_THINK, *self.family.calls.markers)
        self._marker_ids = {self._template.added[each]: each for each in markers if each in self._template.added}
        self._marker_texts = [each for each in markers if each not in self._template.added]
        begins = self._template.begins()
        self._opens_reasoning = begins.rfind(parser.THINK) > begins.rfind(parser.END_THINK)
        prove_messages(self._deltas)
        self._tools_fault = prove_tools(self._deltas, self.parse, self.family.name)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """The ids of a conversation's start, up to where the model begins to write."""
        if tools and self._tools_fault is not None:
            raise self._tools_fault
        return self._template.render(self._deltas.start(messages, tools), tools, generate=True)

    def delta(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """The ids that new messages add after an end of turn, up to where the model begins to write."""
        return self._deltas.of(messages, tools)

    def parse(self, ids: Sequence[int]) -> parser.Parsed:
        """The meaning of a completion, up to the first id that ends it."""
        end = next((place for place, token in enumerate(ids) if token in self.stop_ids), len(ids))
        pieces = [
            piece
            for is_marker, text in parser.split_ids(ids[:end], self._marker_ids, self._decode)
            for piece in ([(True, text)] if is_marker else parser.split_text(text, self._marker_texts))
        ]
        return parser.parse(pieces, self.family.calls, opened=self._opens_reasoning)

    def text(self, ids: Sequence[int]) -> str:
        """Ids for people to read, special tokens included."""
        return self._template.text(ids)

    def said(self, ids: Sequence[int]) -> str:
        """Ids as text that may go into another prompt: without special tokens."""
        return self._decode(ids)

    def ids(self, text: str) -> list[int]:
        """Text as ids, for who stands in for a model."""
        return list(self._template.tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._template.tokenizer.decode(list(ids), skip_special_tokens=True))
