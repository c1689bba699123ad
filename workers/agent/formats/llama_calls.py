"""Reads the calls of Llama 3 models, which are a whole message: JSON with `parameters`, or a list of Python calls.

Only `<|python_tag|>` says for certain that a call follows. Without it a message is one when it begins like one: with
an object that has a name, or with `[name(`. Anything else is text: a model may well answer with JSON or a list.
"""

import ast
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

from workers.agent.calls import Call, CallFormat, Piece, bad, from_object, made
from workers.syntax import parsed

PYTHON_TAG = "<|python_tag|>"
_EXAMPLE = '{"name": "tool", "parameters": {"parameter": "value"}}'
_PYTHON_EXAMPLE = '[tool(parameter="value")]'
_BEGINS_OBJECT = re.compile(r'\{\s*"(?:name|type)"')
_BEGINS_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
_BETWEEN = re.compile(r"[\s;]*")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}


def read(pieces: Sequence[Piece]) -> tuple[str, list[Call]]:
    """Text and calls: what follows the tag, or the whole message where it begins like a call."""
    tag = next((place for place, piece in enumerate(pieces) if piece == (True, PYTHON_TAG)), None)
    before = "".join(piece for _, piece in pieces[:tag]).strip()
    if tag is None:
        if _is_object_call(before):
            return "", _objects(before)
        return ("", read_list(before)) if _BEGINS_LIST.match(before) else (before, [])
    source = "".join(piece for is_marker, piece in pieces[tag:] if not is_marker).strip()
    if source.startswith("["):
        return before, read_list(source)
    return before, _objects(source)


def _is_object_call(source: str) -> bool:
    """An object that begins like a call is none if it can be read and has no arguments."""
    if not _BEGINS_OBJECT.match(source):
        return False
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(source)
    except (ValueError, RecursionError):
        return True
    return "parameters" in value or "arguments" in value


def _objects(source: str) -> list[Call]:
    """JSON objects, one after the other or with semicolons between them."""
    decoder = json.JSONDecoder(strict=False)
    calls: list[Call] = []
    place = 0
    while place < len(source) or not calls:
        try:
            value, end = decoder.raw_decode(source, place)
        except (ValueError, RecursionError) as error:
            calls.append(bad(source[place:], f"a tool call is nothing but JSON, and this is not ({error}). {_write()}"))
            break
        calls.append(from_object(value, source[place:end], _EXAMPLE))
        place = _next(source, end)
    return calls


def _next(source: str, place: int) -> int:
    match = _BETWEEN.match(source, place)
    return match.end() if match else place


def read_list(source: str) -> list[Call]:
    """A Python list of calls with keyword arguments, each a literal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes such as "\d"
            listed = parsed(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return [bad(source, f"a list of tool calls is Python, and this is not ({error}). Write {_PYTHON_EXAMPLE}")]
    if not isinstance(listed, ast.List) or not listed.elts:
        return [bad(source, f"tool calls are a list. Write {_PYTHON_EXAMPLE}")]
    lines = [line.encode("utf-8", "replace") for line in _LINE.findall(source)]
    return [_one(element, _segment(lines, element)) for element in listed.elts]


def _segment(lines: Sequence[bytes], node: ast.expr) -> str:
    """The text of a node, in time that does not depend on what stands around it."""
    assert node.end_lineno is not None
    first, *rest = lines[node.lineno - 1 : node.end_lineno]
    last = [*rest[:-1], rest[-1][: node.end_col_offset]] if rest else []
    first = first[node.col_offset :] if rest else first[node.col_offset : node.end_col_offset]
    return b"".join([first, *last]).decode(errors="replace")


def _one(node: ast.expr, source: str) -> Call:
    name = _dotted(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or name is None:
        return bad(source, f"{source} is no call of a tool. Write {_PYTHON_EXAMPLE}")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        return bad(source, f"name each argument of {name}. Write {_PYTHON_EXAMPLE}")
    try:
        arguments = {str(keyword.arg): ast.literal_eval(_JsonWords().visit(keyword.value)) for keyword in node.keywords}
    except (ValueError, TypeError, RecursionError, MemoryError):
        return bad(source, f"the arguments of {name} must be literals. Write {_PYTHON_EXAMPLE}")
    return made(name, arguments, source)


def _dotted(node: ast.expr) -> str | None:
    """A name, which may have points in it."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


class _JsonWords(ast.NodeTransformer):
    """Models that know JSON write its words into Python too."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_WORDS[node.id]) if node.id in _WORDS else node


def _write() -> str:
    return f"Write {_EXAMPLE}"


LLAMA = CallFormat(name="llama3", markers=(PYTHON_TAG,), read=read)
