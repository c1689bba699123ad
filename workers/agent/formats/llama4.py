"""Llama 4: JSON objects behind `<|python_end|>`, or as the whole message."""

from collections.abc import Sequence
from typing import ClassVar

from workers.agent.calls import Call, CallFormat, Piece
from workers.agent.formats.interface import Model
from workers.agent.formats.llama_calls import PYTHON_TAG
from workers.agent.formats.llama_calls import read as read_llama
from workers.agent.formats.turns import TurnFormat

_PYTHON, _END_PYTHON = "<|python_start|>", "<|python_end|>"


def read(pieces: Sequence[Piece]) -> tuple[str, list[Call]]:
    """The text before and between the tags, and the calls behind them; or the calls between them, where none follow."""
    start = next((place for place, piece in enumerate(pieces) if piece == (True, _PYTHON)), None)
    if start is None:
        return read_llama(_texts(pieces))
    rest = pieces[start + 1 :]
    end = next((place for place, piece in enumerate(rest) if piece == (True, _END_PYTHON)), len(rest))
    before, inside, behind = _texts(pieces[:start]), _texts(rest[:end]), _texts(rest[end:])
    if "".join(text for _, text in behind).strip():
        _, calls = read_llama([(True, PYTHON_TAG), *behind])
        return "".join(text for _, text in (*before, *inside)).strip(), calls
    return read_llama([*before, (True, PYTHON_TAG), *inside])


def _texts(pieces: Sequence[Piece]) -> list[Piece]:
    return [piece for piece in pieces if not piece[0]]


class Llama4(TurnFormat):
    """Llama 4's turns."""

    name = "llama4"
    model_types = ("llama4", "llama4_text")
    calls: ClassVar[CallFormat] = CallFormat(name="llama4", markers=(_PYTHON, _END_PYTHON), read=read)
    ends = ("<|eot|>",)
    stops = ("<|eot|>", "<|eom|>", "<|end_of_text|>")
    closing = ("<|eom|>",)

    @classmethod
    def fits(cls, model: Model) -> bool:
        return model.shows("<|header_start|>", "<|eot|>")
