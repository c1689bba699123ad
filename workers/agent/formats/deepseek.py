"""DeepSeek-V3: calls with a fenced JSON text, whose results continue without an opener."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from workers.agent.calls import Call, CallFormat, Piece, bad, from_object
from workers.agent.formats.interface import Model
from workers.agent.formats.sections import sections
from workers.agent.formats.turns import TurnFormat

_CALLS, _END_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _END_CALL, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_EXAMPLE = f'{_CALLS}{_CALL}function{_SEPARATOR}tool\n```json\n{{"parameter": "value"}}\n```{_END_CALL}{_END_CALLS}'
_CUT = "\x00"
_AROUND: Final = ((True, _CALLS), (True, _END_CALLS))


def read(pieces: Sequence[Piece]) -> tuple[str, list[Call]]:
    """The text, and the calls between their markers."""
    kept = [(False, _CUT) if piece == (True, _SEPARATOR) else piece for piece in pieces]
    text, bodies = sections([piece for piece in kept if piece not in _AROUND], _CALL, _END_CALL)
    return text.replace(_CUT, ""), [_call(body) for body in bodies]


def _call(body: str) -> Call:
    source = body.replace(_CUT, _SEPARATOR)
    _, found, rest = body.partition(_CUT)
    name, _, fenced = rest.strip().partition("\n")
    written = fenced.strip().removeprefix("```json").removesuffix("```").strip()
    if not found or not name.strip():
        return bad(source, f"a tool call names its tool behind {_SEPARATOR}. Write {_EXAMPLE}")
    try:
        arguments = json.loads(written, strict=False)
    except (ValueError, RecursionError) as error:
        return bad(source, f"the arguments of {name} are not valid JSON ({error}). Write {_EXAMPLE}")
    return from_object({"name": name.strip(), "arguments": arguments}, source, _EXAMPLE)


class DeepSeekV3(TurnFormat):
    """DeepSeek's turns, which all end with `<｜end▁of▁sentence｜>`."""

    name = "deepseek_v3"
    model_types = ("deepseek_v3",)
    calls: ClassVar[CallFormat] = CallFormat(
        name="deepseek_v3", markers=(_CALLS, _END_CALLS, _CALL, _END_CALL, _SEPARATOR), read=read
    )
    ends = ("<｜end▁of▁sentence｜>",)
    stops = ("<｜end▁of▁sentence｜>",)
    example = _EXAMPLE
    closes_reasoning = False  # nothing tells whether a completion began inside it: one behind results did not

    @classmethod
    def fits(cls, model: Model) -> bool:
        return model.shows("<｜Assistant｜>", _CALLS)

    def call(self, name: str, call_id: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        function = {"name": name, "arguments": json.dumps(arguments or {"x": "1"})}
        return {"id": call_id, "type": "function", "function": function}

    def opened(self, pieces: Sequence[Piece], *, ended: bool) -> bool:
        """A prompt that ends in a tool's results opens no reasoning: a whole turn that closes none had none."""
        return self.opens_reasoning and (not ended or (True, self.think[1]) in pieces)
