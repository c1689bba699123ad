"""Formats that ask the tokenizer's own chat template for every id: what they share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from workers.agent import parser
from workers.agent.calls import Call, CallFormat, Piece
from workers.agent.formats.arguments import typed
from workers.agent.formats.hermes_calls import HERMES
from workers.agent.formats.interface import Model
from workers.agent.hermes import Message
from workers.agent.template import TemplateError
from workers.agent.tools import Tool


class TemplateFormat(ABC):
    """Reads completions: markers that the vocabulary has as one id by that id, the others as text."""

    name: ClassVar[str] = ""
    model_types: ClassVar[Sequence[str]] = ()  # of config.json, for models whose template shows nothing else
    calls: ClassVar[CallFormat] = HERMES
    think: ClassVar[tuple[str, str]] = (parser.THINK, parser.END_THINK)
    texts_only: ClassVar[bool] = False  # every argument is written as text, and gets its type from the tool's schema

    stop_ids: Sequence[int]
    tools_fault: TemplateError | None = None

    def __init__(self, model: Model) -> None:
        self.model, self.template = model, model.template
        added = self.template.added
        markers = (*self.think, *self.calls.markers)
        self._marker_ids: Mapping[int, str] = {added[each]: each for each in markers if each in added}
        self._marker_texts = [each for each in markers if each not in added]
        self.opens_reasoning = False  # a prompt ends inside the reasoning

    @classmethod
    @abstractmethod
    def fits(cls, model: Model) -> bool: ...

    @abstractmethod
    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]: ...

    @abstractmethod
    def delta(self, tail: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]: ...

    def parse(self, ids: Sequence[int], tools: Sequence[Tool] = ()) -> parser.Parsed:
        pieces = self.pieces(ids)
        ended = any(stop in ids for stop in self.stop_ids)
        parsed = parser.parse(pieces, self.calls, opened=self.opened(pieces, ended=ended), think=self.think)
        if not self.texts_only or not tools:
            return parsed
        found: list[Call] = [typed(call, tools) for call in parsed.calls]
        return msgspec.structs.replace(parsed, calls=found)

    def opened(self, pieces: Sequence[Piece], *, ended: bool) -> bool:
        """True if a completion began inside the reasoning; `ended`: it has sampled an id that ends it."""
        del pieces, ended
        return self.opens_reasoning

    def pieces(self, ids: Sequence[int]) -> list[Piece]:
        """Markers, and the text between them, up to the first id that ends a completion."""
        end = min((ids.index(stop) for stop in self.stop_ids if stop in ids), default=len(ids))
        return [
            piece
            for is_marker, text in parser.split_ids(ids[:end], self._marker_ids, self.decode)
            for piece in ([(True, text)] if is_marker else parser.split_text(text, self._marker_texts))
        ]

    def decode(self, ids: Sequence[int]) -> str:
        return self.template.decode(ids, special=False) if len(ids) else ""

    def encode(self, text: str) -> list[int]:
        return self.template.encode(text)

    def opens(self, prompt_end: str) -> bool:
        """True if a prompt that ends so leaves the reasoning open."""
        opening, closing = self.think
        return prompt_end.rfind(opening) > prompt_end.rfind(closing)
