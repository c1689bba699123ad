"""Reads the calls of ChatML models in the Hermes format: JSON between `<tool_call>` and `</tool_call>`."""

import json
from collections.abc import Sequence

from workers.agent.calls import Call, CallFormat, Piece, bad, from_object

CALL, END_CALL = "<tool_call>", "</tool_call>"
_EXAMPLE = '{"name": "tool", "arguments": {"parameter": "value"}}'


def read(pieces: Sequence[Piece]) -> tuple[str, list[Call]]:
    """A call that the completion never closed counts if its JSON is whole, else its error says so."""
    text: list[str] = []
    calls: list[Call] = []
    body: list[str] | None = None
    for is_marker, piece in pieces:
        match piece if is_marker else None:
            case "<tool_call>":
                calls += [read_call("".join(body))] if body is not None else []
                body = []
            case "</tool_call>" if body is None:
                calls.append(bad("", f"there is a {END_CALL} without a {CALL} before it. Write {CALL}{_EXAMPLE}"))
            case "</tool_call>":
                calls.append(read_call("".join(body or ())))
                body = None
            case _:
                (text if body is None else body).append(piece)
    if body is not None:
        calls.append(read_call("".join(body)))
    return "".join(text).strip(), calls


def read_call(source: str) -> Call:
    """One call from its JSON text, which may hold raw line breaks inside strings."""
    source = source.strip()
    try:
        value = json.loads(source, strict=False)
    except (ValueError, RecursionError) as error:
        return bad(source, f"the text between {CALL} and {END_CALL} is not valid JSON ({error}). Write {_EXAMPLE}")
    return from_object(value, source, _EXAMPLE)


HERMES = CallFormat(name="hermes", markers=(CALL, END_CALL), read=read)
