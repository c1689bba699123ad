"""GLM-4.5: a turn ends where the model samples the next role, and arguments are pairs of key and value.

<tool_call>NAME
<arg_key>KEY</arg_key>
<arg_value>VALUE</arg_value>
</tool_call>
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from workers.agent.calls import Call, CallFormat, Piece, bad, made
from workers.agent.formats.hermes_calls import CALL, END_CALL
from workers.agent.formats.interface import Model
from workers.agent.formats.turns import TurnFormat

_KEY, _END_KEY, _VALUE, _END_VALUE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_EXAMPLE = f"{CALL}tool\n{_KEY}name{_END_KEY}\n{_VALUE}value{_END_VALUE}\n{END_CALL}"
MARKERS: Final = (CALL, END_CALL, _KEY, _END_KEY, _VALUE, _END_VALUE)


def read(pieces: Sequence[Piece]) -> tuple[str, list[Call]]:
    """A call that the completion never closed counts if its last value is closed."""
    text: list[str] = []
    bodies: list[list[Piece]] = []
    inside = False
    for is_marker, piece in pieces:
        if is_marker and piece == CALL:
            inside = True
            bodies.append([])
        elif is_marker and piece == END_CALL:
            inside = False
        elif inside:
            bodies[-1].append((is_marker, piece))
        else:
            text.append(piece)
    return "".join(text).strip(), [_call(body) for body in bodies]


def _call(body: Sequence[Piece]) -> Call:
    source = "".join(piece for _, piece in body).strip()
    name, arguments = "", {}
    part, key = "", ""
    held: list[str] = []
    for is_marker, piece in body:
        if not is_marker:
            held.append(piece)
            continue
        said, held = "".join(held), []
        match piece, part:
            case "<arg_key>", "":
                name = name or said.strip()
                part = _KEY
            case "</arg_key>", "<arg_key>":
                key, part = said.strip(), _END_KEY
            case "<arg_value>", "</arg_key>":
                part = _VALUE
            case "</arg_value>", "<arg_value>":
                arguments[key], part = said, ""
            case _:
                return bad(source, f"{piece} has no place there. Write\n{_EXAMPLE}")
    if part:
        return bad(source, f"the last argument is not whole. Write\n{_EXAMPLE}")
    name = name or "".join(held).strip()
    return made(name, arguments, source) if name else bad(source, f"a tool call names a tool. Write\n{_EXAMPLE}")


class Glm(TurnFormat):
    """GLM's turns: `<|user|>` and `<|observation|>` end what came before them."""

    name = "glm45"
    model_types = ("glm4_moe",)
    calls: ClassVar[CallFormat] = CallFormat(name="glm45", markers=MARKERS, read=read)
    texts_only = True
    ends = ("<|user|>", "<|observation|>", "<|system|>")
    stops = ("<|user|>", "<|observation|>", "<|endoftext|>")

    @classmethod
    def fits(cls, model: Model) -> bool:
        return model.shows("[gMASK]", "<|observation|>", _KEY)
