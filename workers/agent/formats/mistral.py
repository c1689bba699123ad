"""Mistral with the tekken vocabulary (v3): a JSON list behind `[TOOL_CALLS]`, each call with an id of nine characters.

The template shows the tools before the last question alone, and the system message only where a question is last. What
was shown stays in the record; a new question brings the tools again.
"""

import json
import re
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from workers.agent.calls import Call, CallFormat, Piece, bad, from_object
from workers.agent.formats.interface import Model
from workers.agent.formats.turns import TurnFormat

_CALLS = "[TOOL_CALLS]"
_EXAMPLE = f'{_CALLS}[{{"name": "tool", "arguments": {{"parameter": "value"}}}}]'
_ID = re.compile(r"[A-Za-z0-9]{9}")


def read(pieces: Sequence[Piece]) -> tuple[str, list[Call]]:
    """The text before the marker, and the calls of the list behind it."""
    place = next((place for place, piece in enumerate(pieces) if piece == (True, _CALLS)), len(pieces))
    text = "".join(piece for _, piece in pieces[:place]).strip()
    if place == len(pieces):
        return text, []
    source = "".join(piece for is_marker, piece in pieces[place:] if not is_marker).strip()
    try:
        values = json.loads(source, strict=False)
    except (ValueError, RecursionError) as error:
        return text, [bad(source, f"what follows {_CALLS} is not valid JSON ({error}). Write {_EXAMPLE}")]
    if not isinstance(values, list) or not values:
        return text, [bad(source, f"tool calls are a list. Write {_EXAMPLE}")]
    return text, [_call(value) for value in values]


def _call(value: object) -> Call:
    call = from_object(value, json.dumps(value), _EXAMPLE)
    given = value.get("id") if isinstance(value, dict) else None
    return msgspec.structs.replace(call, call_id=given) if isinstance(given, str) and _ID.fullmatch(given) else call


class MistralTekken(TurnFormat):
    """Mistral's turns between `[INST]` and `</s>`."""

    name = "mistral"
    calls: ClassVar[CallFormat] = CallFormat(name="mistral", markers=(_CALLS,), read=read)
    ends = ("</s>",)
    stops = ("</s>",)
    system_first = False
    rewrites = True
    all_tools = True
    closes_reasoning = False

    @classmethod
    def fits(cls, model: Model) -> bool:
        return model.shows("[INST]", "[AVAILABLE_TOOLS]")

    def id_of(self, call: Call | None, place: int) -> str:
        return (call.call_id if call else "") or super().id_of(call, place)
