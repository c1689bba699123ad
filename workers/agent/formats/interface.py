"""The protocol of a model format: prompts and what follows a completion as ids, completions as meaning.

A package brings its own by an entry point that names a class (`workers.agent.formats.registry.GROUP`). The class is
asked with `fits` whether a model is its own, and made with that model.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from workers.agent.hermes import Message
from workers.agent.parser import Parsed
from workers.agent.template import ChatTemplate
from workers.agent.tools import Tool


class Model(msgspec.Struct, frozen=True):
    """A model as formats see it, to recognise it and to work with."""

    name: str
    template: ChatTemplate
    model_type: str | None = None  # of config.json, where there is one

    @property
    def tokenizer(self) -> Any:
        return self.template.tokenizer

    def has_token(self, *tokens: str) -> bool:
        """True if the vocabulary has each of these as one id of its own."""
        return all(token in self.template.added for token in tokens)

    def shows(self, *signs: str) -> bool:
        """True if each of these stands in the chat template."""
        return all(sign in self.template.source for sign in signs)


class Format(Protocol):
    """One model's prompts. An attribute `tools_fault`, if there is one that is not None, is raised with the first tool.

    An attribute `begins_lineages`, if it is there and true, says what a conversation of a third-party agent does where
    the template drops the thoughts of earlier answers: it is rendered again, and earlier completions are prompt there.
    Otherwise ids are appended, thoughts included, and the segment is marked `keeps_thinking`.

    Raises `workers.agent.template.TemplateError` when it is made for a model that it cannot continue by ids.
    """

    @property
    def name(self) -> str: ...

    @property
    def stop_ids(self) -> Sequence[int]:
        """The ids that end a completion; the first one ends a turn that calls no tool."""
        ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """The ids of a conversation's start, up to where the model begins to write."""
        ...

    def delta(self, tail: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """The ids that follow a completion when these messages come, up to where the model writes again.

        `tail` is the completion as it was sampled. It stays; what it lacks to be a whole turn is part of the delta.
        """
        ...

    def parse(self, ids: Sequence[int], tools: Sequence[Tool] = ()) -> Parsed:
        """The meaning of a completion, up to the first id that ends it."""
        ...


class ModelFormat(Protocol):
    """A class of formats, as an entry point of its name has it."""

    def fits(self, model: Model) -> bool:
        """True if this is a model of the format."""
        ...

    def __call__(self, model: Model) -> Format: ...
