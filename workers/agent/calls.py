"""A tool call as a model wrote it, whatever the format: the struct, and how an object becomes one."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

MAX_CALLS_PER_TURN = 16
Piece = tuple[bool, str]  # whether it is a marker, and its text


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call as the model wrote it. `error` says why it cannot be run; then `arguments` is empty."""

    name: str
    arguments: dict[str, Any]
    source: str  # the text of the call
    error: str | None = None
    call_id: str = ""  # the id that the model gave it, in formats that number calls

    @property
    def told(self) -> tuple[str, str]:
        """Its name, and its arguments as JSON text; of one that cannot be read, what the model wrote."""
        return self.name, json.dumps(self.arguments) if self.error is None else self.source


class CallFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One way to write calls. `markers[0]` opens a call; `read` sorts pieces into the text and the calls."""

    name: str
    markers: Sequence[str]
    read: Callable[[Sequence[Piece]], tuple[str, list[Call]]]


def made(name: str, arguments: dict[str, Any], source: str) -> Call:
    """A call that can be run, unless its arguments are no JSON text: sets and half characters come to mind."""
    try:
        text = json.dumps([name, arguments], ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return bad(source, f"the arguments must be plain JSON values and whole characters ({error})")
    name, arguments = json.loads(text)
    return Call(name=name, arguments=arguments, source=source)


def bad(source: str, error: str) -> Call:
    return Call(name="", arguments={}, source=source, error=error)


def from_object(value: object, source: str, example: str) -> Call:
    """The call that a JSON value stands for. Its arguments may be called `arguments` or `parameters`, and be quoted."""
    if not isinstance(value, dict):
        return bad(source, f"a tool call is a JSON object like {example}, not {_kind(value)}")
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str):
        return bad(source, f'"name" must be a string that names a tool. Write {example}')
    if isinstance(arguments, str):
        arguments = _object_in(arguments)
    if not isinstance(arguments, dict):
        field = "parameters" if "parameters" in value else "arguments"
        return bad(source, f'"{field}" must be an object. Write {example}')
    return made(name, arguments, source)


def _object_in(text: str) -> object:
    try:
        value: object = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value


def _kind(value: object) -> str:
    kinds = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")


def limited(calls: Sequence[Call]) -> Sequence[Call]:
    """The calls of a turn that are looked at; the rest get one answer together."""
    if len(calls) <= MAX_CALLS_PER_TURN:
        return calls
    rest = bad("", f"{len(calls)} calls in one turn: the first {MAX_CALLS_PER_TURN} were run, the others were not")
    return [*calls[:MAX_CALLS_PER_TURN], rest]
