"""gpt-oss: a completion is several messages, each with a channel, and a call is a message to a tool (harmony).

<|channel|>analysis<|message|>THOUGHT<|end|><|start|>assistant to=functions.NAME<|channel|>commentary json
<|message|>{"parameter": "value"}<|call|>
"""

import json
import re
from collections.abc import Sequence
from typing import ClassVar, Final

from workers.agent.calls import Call, CallFormat, Piece, bad, made
from workers.agent.formats.interface import Model
from workers.agent.formats.turns import TurnFormat
from workers.agent.parser import Parsed
from workers.agent.tools import Tool

_START, _CHANNEL, _MESSAGE, _END, _CALL = "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"
_CONSTRAIN: Final = "<|constrain|>"
_RECIPIENT = re.compile(r"\bto=(\S+)")
_EXAMPLE = f'to=functions.tool{_CHANNEL}commentary json{_MESSAGE}{{"parameter": "value"}}{_CALL}'


def read(pieces: Sequence[Piece]) -> tuple[str, list[Call]]:
    """Text and calls of a completion without its thoughts."""
    _, text, calls = read_messages(pieces)
    return text, calls


def read_messages(pieces: Sequence[Piece]) -> tuple[str, str, list[Call]]:
    """Thoughts, text and calls. A completion without any message is text."""
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[Call] = []
    if (True, _MESSAGE) not in pieces:
        said = "".join(piece for is_marker, piece in pieces if not is_marker)
        return ("", said.strip(), []) if (True, _CHANNEL) not in pieces else (said.strip(), "", [])
    for header, body in _messages(pieces):
        recipient = _RECIPIENT.search(header)
        if recipient is not None:
            calls.append(_call(recipient.group(1), body))
        elif "analysis" in header.split():
            thoughts.append(body.strip())
        else:
            texts.append(body.strip())
    return "\n".join(thoughts), "\n".join(part for part in texts if part), calls


def _messages(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """The messages that have a body: header and body. The first one's header began in the prompt."""
    found: list[tuple[str, str]] = []
    header: list[str] = []
    body: list[str] | None = None
    for is_marker, piece in pieces:
        if is_marker and piece in {_END, _CALL, _START}:
            found += [("".join(header), "".join(body))] if body is not None else []
            header, body = [], None
        elif is_marker and piece == _MESSAGE and body is None:
            body = []
        elif body is not None:
            body += [] if is_marker else [piece]
        else:
            header.append(" " if is_marker else piece)
    return [*found, ("".join(header), "".join(body))] if body is not None else found


def _call(recipient: str, body: str) -> Call:
    name = recipient.removeprefix("functions.")
    try:
        arguments = json.loads(body, strict=False)
    except (ValueError, RecursionError) as error:
        return bad(f"{name} {body}", f"the message to {recipient} is not valid JSON ({error}). Write {_EXAMPLE}")
    if not isinstance(arguments, dict):
        return bad(f"{name} {body}", f"the message to {recipient} is a JSON object. Write {_EXAMPLE}")
    return made(name, arguments, body)


class Harmony(TurnFormat):
    """gpt-oss's turns: `<|return|>` ends an answer, `<|call|>` asks for a tool."""

    name = "gpt_oss"
    model_types = ("gpt_oss",)
    calls: ClassVar[CallFormat] = CallFormat(
        name="gpt_oss", markers=(_CALL, _START, _CHANNEL, _MESSAGE, _END, _CONSTRAIN), read=read
    )
    think = ("<think>", "</think>")  # never written: thoughts are a channel
    ends = (_END, _CALL, "<|return|>")
    stops = ("<|return|>", _CALL)
    closing = ("<|return|>", _CALL, _END)
    closes_reasoning = False  # the end of its message closes a thought

    @classmethod
    def fits(cls, model: Model) -> bool:
        return model.shows(_START, _CHANNEL, _MESSAGE, "commentary")

    def name_of(self, call: Call) -> str:
        return call.name or (call.source.split() or ["unknown"])[0]

    def parse(self, ids: Sequence[int], tools: Sequence[Tool] = ()) -> Parsed:
        del tools
        reasoning, text, calls = read_messages(self.pieces(ids))
        return Parsed(text=text, reasoning=reasoning, calls=calls)
