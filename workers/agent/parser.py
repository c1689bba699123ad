"""Reads a completion: reasoning, text and tool calls, from its ids.

What is read here decides which tools run; it never returns to the history, which stays as it was sampled. Markers
that the vocabulary knows as single ids are found by id, so that text which merely spells one is text; a vocabulary
without them is searched as text.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

THINK, END_THINK, CALL, END_CALL = "<think>", "</think>", "<tool_call>", "</tool_call>"
MARKERS = (THINK, END_THINK, CALL, END_CALL)
_MARKER = re.compile("|".join(re.escape(marker) for marker in MARKERS))
_EXAMPLE = '{"name": "tool", "arguments": {"parameter": "value"}}'

Piece = tuple[bool, str]  # whether it is a marker, and its text


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call as the model wrote it. `error` says why it cannot be run; then `arguments` is empty."""

    name: str
    arguments: dict[str, Any]
    source: str  # the JSON text between the markers
    error: str | None = None


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """A completion as the loop needs it."""

    text: str
    reasoning: str
    calls: Sequence[Call]


def split_ids(ids: Sequence[int], markers: Mapping[int, str], decode: Callable[[Sequence[int]], str]) -> list[Piece]:
    """Cuts at the ids of markers."""
    pieces: list[Piece] = []
    start = 0
    for place, token in enumerate(ids):
        if token in markers:
            pieces += [(False, decode(ids[start:place])), (True, markers[token])]
            start = place + 1
    return [*pieces, (False, decode(ids[start:]))]


def split_text(text: str) -> list[Piece]:
    """Cuts at the text of markers, for vocabularies that have no ids for them."""
    pieces: list[Piece] = []
    start = 0
    for match in _MARKER.finditer(text):
        pieces += [(False, text[start : match.start()]), (True, match.group())]
        start = match.end()
    return [*pieces, (False, text[start:])]


def parse(pieces: Sequence[Piece]) -> Parsed:
    """Sorts pieces. A call that the completion never closed counts if its JSON is whole, else its error says so."""
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[Call] = []
    target = text
    body: list[str] | None = None
    for is_marker, piece in pieces:
        match piece if is_marker else None:
            case "<think>":
                target = reasoning
            case "</think>":
                # The opening marker may stand in the prompt: then all that came before was reasoning.
                if target is text and not reasoning:
                    reasoning, text = text, []
                target = text
            case "<tool_call>":
                calls += [read_call("".join(body))] if body is not None else []
                body = []
            case "</tool_call>":
                calls += [read_call("".join(body))] if body is not None else []
                body = None
            case _:
                (target if body is None else body).append(piece)
    if body is not None:
        calls.append(read_call("".join(body)))
    return Parsed(text="".join(text).strip(), reasoning="".join(reasoning).strip(), calls=calls)


def read_call(source: str) -> Call:
    """One call from its JSON text, which may hold raw line breaks inside strings."""
    source = source.strip()
    try:
        value = json.loads(source, strict=False)
    except (ValueError, RecursionError) as error:
        return _bad(source, f"the text between {CALL} and {END_CALL} is not valid JSON ({error}). Write {_EXAMPLE}")
    if not isinstance(value, dict):
        return _bad(source, f"a tool call is a JSON object like {_EXAMPLE}, not {_kind(value)}")
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str):
        return _bad(source, f'"name" must be a string that names a tool. Write {_EXAMPLE}')
    if isinstance(arguments, str):
        arguments = _object_in(arguments)
    if not isinstance(arguments, dict):
        return _bad(source, f'"arguments" must be an object. Write {_EXAMPLE}', name)
    return Call(name=name, arguments=arguments, source=source)


def _object_in(text: str) -> object:
    try:
        value: object = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value


def _bad(source: str, error: str, name: str = "") -> Call:
    return Call(name=name, arguments={}, source=source, error=error)


def _kind(value: object) -> str:
    kinds = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
