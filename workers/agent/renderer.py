"""Renderer for one model's tokenizer and chat template: prompts and deltas as ids, completions as meaning.

Only the first prompt is rendered whole; nothing that a model wrote is ever rendered. The model's format does it, and
proves itself when the renderer is made.
"""

import functools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prorl_mq.clock import monotonic
from prorl_mq.process.tokenizers import sees
from workers.agent.formats.interface import Format, Model
from workers.agent.formats.registry import chosen, no_tools
from workers.agent.hermes import Message
from workers.agent.parser import Parsed
from workers.agent.pictures import messages as pictured
from workers.agent.pictures import vision
from workers.agent.template import ChatTemplate, NoTools, TemplateError
from workers.agent.tools import Tool

BLIND_S: Final = 60.0  # until a processor that failed is loaded again: storage may have been away


class Renderer:
    """One model's renderer. Get it from `workers.agent.loading`: cached, and made off the event loop.

    Raises `TemplateError` for a template that cannot be continued by ids.
    """

    def __init__(
        self,
        tokenizer: Any,
        name: str,
        options: Mapping[str, Any] | None = None,
        family: str | None = None,
        model_type: str | None = None,
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self._template = ChatTemplate(tokenizer, name, options)
        self._model = Model(name, self._template, model_type)
        self.family: Format = chosen(self._model, family)
        self.stop_ids = tuple(self.family.stop_ids)
        self._directory = directory
        self._vision: vision.Vision | None = None
        self._looking = threading.Lock()
        self._blind: Exception | None = None  # why there is none
        self._blind_until = 0.0

    @property
    def end_of_turn(self) -> int:
        """The id that ends a turn without calls."""
        return self.stop_ids[0]

    @functools.cached_property
    def tools_fault(self) -> NoTools | None:
        """The reason why the model cannot be given tools, if there is one, with the nearest format that can."""
        fault: TemplateError | None = getattr(self.family, "tools_fault", None)
        return None if fault is None else no_tools(self._model, self.family.name, fault)

    @property
    def vocabulary(self) -> int:
        """One more than the largest id."""
        return self._template.vocabulary

    @property
    def takes_late_system(self) -> bool:
        """True if a system message may stand behind others."""
        return self._template.takes_late_system

    @property
    def drops_thinking(self) -> bool:
        """True if the template drops thoughts of earlier answers; ids keep them, unless the format renders again."""
        return self._template.drops_thinking

    @property
    def begins_lineages(self) -> bool:
        """True if the format renders a conversation again where the template drops thoughts."""
        return bool(getattr(self.family, "begins_lineages", False))

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """The ids of a conversation's start, up to where the model begins to write. Images are for `opening`."""
        if tools and self.tools_fault is not None:
            raise self.tools_fault
        return self.family.prompt(messages, tools)

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> vision.Expanded:
        """The same, with the images of messages that have some. Raises `NoVision`, `ImagesMismatched` and what decoding
        an image raises. Call it in a thread.
        """
        images = pictured.images_of(messages)
        if not images:
            return vision.Expanded(self.prompt(messages, tools))
        seen = self.vision()
        return seen.expanded(self.prompt(pictured.placed(messages), tools), images)

    def following(
        self, tail: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool] = (), before: int = 0
    ) -> vision.Expanded:
        """The same, with the images of messages that have some, as they stand behind `before` ids. Raises as `opening`
        does. Call it in a thread.
        """
        images = pictured.images_of(messages)
        if not images:
            return vision.Expanded(self.after(tail, messages, tools))
        return self.vision().expanded(self.after(tail, pictured.placed(messages), tools), images, before)

    def _seen(self) -> vision.Vision:
        if self._directory is None:
            raise vision.NoVision(f"the rollout has images, and {self.name} is no model's directory")
        self._template.shows_images = True
        return vision.load(self._directory, self._template)

    @property
    def sees(self) -> bool:
        """True if the files of an image processor lie in its directory; `vision` proves them."""
        return self._vision is not None or (self._directory is not None and sees(self._directory))

    def vision(self) -> vision.Vision:
        """The images of the model: loaded and proved when they are first asked for. A failure is kept for a minute:
        each try takes seconds, in which every other job with images waits.

        Raises `NoVision` or `ImageExtraMissing`.
        """
        with self._looking:
            if self._blind is not None and monotonic() < self._blind_until:
                raise self._blind.with_traceback(None)
            if self._vision is None:
                try:
                    self._vision = self._seen()
                except Exception as error:
                    self._blind, self._blind_until = error, monotonic() + BLIND_S
                    raise
            return self._vision

    def after(self, tail: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """The ids that follow a completion, what it lacks to be a whole turn included. Images are for `following`."""
        return self.family.delta(tail, messages, tools)

    def delta(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """The ids that new messages add after an end of turn, up to where the model begins to write."""
        return self.after([self.end_of_turn], messages, tools)

    def parse(self, ids: Sequence[int], tools: Sequence[Tool] = ()) -> Parsed:
        """The meaning of a completion, up to the first id that ends it."""
        return self.family.parse(ids, tools)

    def text(self, ids: Sequence[int]) -> str:
        """Ids for people to read, special tokens included."""
        return self._template.text(ids)

    def said(self, ids: Sequence[int]) -> str:
        """Ids as text that may go into another prompt: without special tokens."""
        return self._template.decode(ids, special=False)

    def ids(self, text: str) -> list[int]:
        """Text as ids, for who stands in for a model."""
        return self._template.encode(text)
