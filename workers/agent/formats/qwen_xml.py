"""Qwen3.5, Qwen3.6, Qwen3.8, Qwen3-Coder and Nemotron 3: calls of named parameters between tags.

<tool_call>
<function=NAME>
<parameter=KEY>
VALUE
</parameter>
</function>
</tool_call>
"""

from collections.abc import Sequence
from typing import ClassVar

from workers.agent.calls import Call, CallFormat, Piece, bad, made
from workers.agent.formats.hermes_calls import CALL, END_CALL
from workers.agent.formats.interface import Model
from workers.agent.formats.sections import sections
from workers.agent.formats.turns import TurnFormat

_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
_EXAMPLE = f"{CALL}\n{_FUNCTION}tool>\n{_PARAMETER}name>\nvalue\n{_END_PARAMETER}\n{_END_FUNCTION}\n{END_CALL}"


def read(pieces: Sequence[Piece]) -> tuple[str, list[Call]]:
    """A call that the completion never closed counts if its function is closed."""
    text, bodies = sections(pieces, CALL, END_CALL)
    return text, [read_call(body) for body in bodies]


def read_call(source: str) -> Call:
    """One call from the text between its markers. The time is linear in its length."""
    source = source.strip()
    if not source.startswith(_FUNCTION) or ">" not in source or _END_FUNCTION not in source:
        return bad(source, f"a tool call is a function with parameters. Write\n{_EXAMPLE}")
    name, _, rest = source[len(_FUNCTION) :].partition(">")
    body = rest[: rest.rfind(_END_FUNCTION)]
    head, *parts = body.split(_PARAMETER)
    if head.strip():
        return bad(source, f"each argument is a parameter of its own. Write\n{_EXAMPLE}")
    arguments: dict[str, str] = {}
    held: list[str] = []
    for part in parts:
        held.append(part)
        if _END_PARAMETER not in part:
            continue  # the value spells the beginning of a parameter
        key, _, value = _PARAMETER.join(held).partition(">")
        held = []
        arguments[key.strip()] = _bare(value[: value.rfind(_END_PARAMETER)])
    if held:
        return bad(source, f"the last parameter is not closed. Write\n{_EXAMPLE}")
    return made(name.strip(), dict(arguments), source)


def _bare(value: str) -> str:
    """A value without the line breaks that stand for its tags."""
    return value.removeprefix("\n").removesuffix("\n")


class QwenXml(TurnFormat):
    """ChatML turns with such calls; the prompt may end inside the reasoning."""

    name = "qwen_xml"
    calls: ClassVar[CallFormat] = CallFormat(name="qwen_xml", markers=(CALL, END_CALL), read=read)
    texts_only = True
    ends = ("<|im_end|>",)
    stops = ("<|im_end|>", "<|endoftext|>")

    @classmethod
    def fits(cls, model: Model) -> bool:
        return model.shows("<|im_start|>", _FUNCTION)
