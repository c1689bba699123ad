"""LFM2 and LFM2.5: calls as a Python list between `<|tool_call_start|>` and `<|tool_call_end|>`."""

from collections.abc import Sequence
from typing import ClassVar

from workers.agent.calls import Call, CallFormat, Piece
from workers.agent.formats.interface import Model
from workers.agent.formats.llama_calls import read_list
from workers.agent.formats.sections import sections
from workers.agent.formats.turns import TurnFormat

_CALLS, _END_CALLS = "<|tool_call_start|>", "<|tool_call_end|>"


def read(pieces: Sequence[Piece]) -> tuple[str, list[Call]]:
    """The text, and the calls of all lists."""
    text, lists = sections(pieces, _CALLS, _END_CALLS)
    return text, [call for written in lists for call in read_list(written.strip())]


class Lfm2(TurnFormat):
    """ChatML turns with such calls."""

    name = "lfm2"
    model_types = ("lfm2", "lfm2_moe")
    calls: ClassVar[CallFormat] = CallFormat(name="lfm2", markers=(_CALLS, _END_CALLS), read=read)
    ends = ("<|im_end|>",)
    stops = ("<|im_end|>", "<|endoftext|>")

    @classmethod
    def fits(cls, model: Model) -> bool:
        return model.has_token(_CALLS) and model.shows("<|im_start|>", "List of tools: ")
