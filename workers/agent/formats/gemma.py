"""Gemma 4: a turn continues through its tools' responses, and arguments are objects of bare keys.

<|tool_call>call:NAME{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>
"""

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from workers.agent.calls import Call, CallFormat, Piece, bad, made
from workers.agent.formats.interface import Model
from workers.agent.formats.turns import TurnFormat
from workers.agent.parser import Parsed
from workers.agent.tools import Tool

_CALL, _END_CALL, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_EXAMPLE = f"{_CALL}call:tool{{name:{_QUOTE}value{_QUOTE}}}{_END_CALL}"
_NAME = re.compile(r"\s*call:\s*([\w.-]+)\s*")
_PART = re.compile("\x00\\d+\x00|[{}\\[\\],:]|[^{}\\[\\],:\x00]+")
_CLOSES: Final = {"{": "}", "[": "]"}


def read(pieces: Sequence[Piece]) -> tuple[str, list[Call]]:
    """The text, and the calls between their markers."""
    text: list[str] = []
    bodies: list[list[Piece]] = []
    inside = False
    for is_marker, piece in pieces:
        if is_marker and piece == _CALL:
            inside = True
            bodies.append([])
        elif is_marker and piece == _END_CALL:
            inside = False
        elif inside:
            bodies[-1].append((is_marker, piece))
        elif not is_marker:
            text.append(piece)
    return "".join(text).strip(), [_call(body) for body in bodies]


def _call(body: Sequence[Piece]) -> Call:
    source = "".join(piece for _, piece in body)
    strings: list[str] = []
    parts: list[str] = []
    quoted = False
    for is_marker, piece in body:
        if is_marker:
            quoted = not quoted
            strings += [""] if quoted else []
            parts += [f"\x00{len(strings) - 1}\x00"] if quoted else []
        elif quoted:
            strings[-1] += piece
        else:
            parts.append(piece.replace("\x00", ""))
    written = "".join(parts)
    match = _NAME.match(written)
    if match is None:
        return bad(source, f"a tool call begins with its tool. Write {_EXAMPLE}")
    if quoted:
        return bad(source, f"a text is not closed by {_QUOTE}. Write {_EXAMPLE}")
    try:
        arguments = _Reading(_PART.findall(written[match.end() :].strip()), strings).whole()
    except (ValueError, RecursionError) as error:
        return bad(source, f"the arguments are not readable ({error}). Write {_EXAMPLE}")
    return made(match.group(1), arguments, source)


class _Reading:
    """One object, read part by part."""

    def __init__(self, parts: Sequence[str], strings: Sequence[str]) -> None:
        self._parts = [part for part in parts if part.strip()]
        self._strings = strings
        self._place = 0

    def whole(self) -> dict[str, Any]:
        value = self._value()
        if self._place < len(self._parts) or not isinstance(value, dict):
            raise ValueError("it is one object between braces")
        return value

    def _next(self) -> str:
        if self._place >= len(self._parts):
            raise ValueError("it ends too early")
        self._place += 1
        return self._parts[self._place - 1].strip() or self._parts[self._place - 1]

    def _value(self) -> Any:
        part = self._next()
        if part in _CLOSES:
            return self._listed(_CLOSES[part], keyed=part == "{")
        if part in {"}", "]", ",", ":"}:
            raise ValueError(f"{part!r} has no place there")
        return self._plain(part)

    def _listed(self, closing: str, *, keyed: bool) -> Any:
        values: dict[str, Any] = {}
        while True:
            if self._place < len(self._parts) and self._parts[self._place].strip() == closing:
                self._place += 1
                break
            key = str(self._text(self._next())) if keyed else str(len(values))
            if keyed and self._next() != ":":
                raise ValueError(f"no ':' stands behind {key!r}")
            values[key] = self._value()
            after = self._next()
            if after == closing:
                break
            if after != ",":
                raise ValueError(f"no ',' stands before {after!r}")
        return values if keyed else list(values.values())

    def _text(self, part: str) -> str:
        return self._strings[int(part[1:-1])] if part.startswith("\x00") else part

    def _plain(self, part: str) -> Any:
        if part.startswith("\x00"):
            return self._text(part)
        try:
            return json.loads(part)
        except ValueError:
            return part


class Gemma4(TurnFormat):
    """Gemma 4's turns: results continue the model's own turn."""

    name = "gemma4"
    model_types = ("gemma4",)
    calls: ClassVar[CallFormat] = CallFormat(name="gemma4", markers=(_CALL, _END_CALL, _QUOTE), read=read)
    think = ("<|channel>", "<channel|>")
    ends = ("<turn|>", "<|tool_response>")
    stops = ("<turn|>", "<|tool_response>")

    @classmethod
    def fits(cls, model: Model) -> bool:
        return model.shows("<|turn>", _CALL)

    def name_of(self, call: Call) -> str:
        match = _NAME.match(call.source)
        return call.name or (match.group(1) if match else "unknown")

    def parse(self, ids: Sequence[int], tools: Sequence[Tool] = ()) -> Parsed:
        parsed = super().parse(ids, tools)
        return msgspec.structs.replace(parsed, reasoning=parsed.reasoning.removeprefix("thought").strip())
