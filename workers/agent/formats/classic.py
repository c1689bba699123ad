"""The formats of models that end every turn with one token: `chatml`, `llama3`, and `generic` for any other template.

`chatml` is Qwen2.5, Qwen3, SmolLM2 and Hermes (reasoning on or off is an option of Qwen3's template); `llama3` is
Llama 3.0 to 3.3; `generic` is every other template, with calls in the Hermes format.
"""

from collections.abc import Sequence
from typing import ClassVar

from workers.agent.calls import CallFormat
from workers.agent.deltas import Deltas
from workers.agent.formats.by_template import TemplateFormat
from workers.agent.formats.interface import Model
from workers.agent.formats.llama_calls import LLAMA
from workers.agent.hermes import Message
from workers.agent.proof import prove_messages, prove_tools
from workers.agent.tools import Tool


class ClassicFormat(TemplateFormat):
    """A delta follows an end of turn, which is inserted where a completion has none."""

    sign: ClassVar[str] = ""  # stands in the chat templates of this format
    closing: ClassVar[Sequence[str]] = ()  # tokens that close a turn as well as the template's end of turn does
    stops: ClassVar[Sequence[str]] = ()  # other tokens that end a completion; the end of turn is inserted behind them

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        template = self.template
        self.deltas = Deltas(template)
        self.closing_ids = template.ids_of(self.closing) | {template.end_of_turn}
        others = self.closing_ids | template.ids_of([*self.stops, template.tokenizer.eos_token])
        self.stop_ids = (template.end_of_turn, *sorted(others - {template.end_of_turn}))
        self.opens_reasoning = self.opens(template.begins())
        prove_messages(self.deltas)
        self.tools_fault = prove_tools(self.deltas, self.parse, self.name)

    @classmethod
    def fits(cls, model: Model) -> bool:
        return cls.sign in model.template.source

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        return self.template.render(self.deltas.start(messages, tools), tools, generate=True)

    def delta(self, tail: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        closed = bool(tail) and tail[-1] in self.closing_ids
        return [*([] if closed else [self.template.end_of_turn]), *self.deltas.of(messages, tools)]


class ChatMl(ClassicFormat):
    """Turns between `<|im_start|>` and `<|im_end|>`, calls as JSON in `<tool_call>`."""

    name = "chatml"
    sign = "<|im_start|>"
    stops = ("<|endoftext|>",)


class Llama3(ClassicFormat):
    """Turns with header tokens, a call as a whole message."""

    name = "llama3"
    sign = "<|start_header_id|>"
    calls: ClassVar[CallFormat] = LLAMA
    closing = ("<|eom_id|>",)
    stops = ("<|end_of_text|>",)


class Generic(ClassicFormat):
    """Any template that can be continued by ids."""

    name = "generic"
