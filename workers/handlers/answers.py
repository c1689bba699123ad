"""Finds the answer in what a model wrote."""

import re
from typing import NamedTuple

MAX_ANSWER_CHARS = 16 << 10
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(-?\d+(?:[.,]\d+)*|(?<=\s)[A-Za-z](?![A-Za-z])))")
_BETWEEN = re.compile(r"(?:[\s,;.$]|and|or|\\\[|\\\]|\\\(|\\\)|\\quad|\\text\{\s*(?:and|or)\s*\}){0,60}")
_TRIES = 32  # boxes that never close, from the end
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_SPOKEN = re.compile(r"\banswer(?:\s+is|\s*[:=])\s*:?\s*(.+)", re.IGNORECASE)
_FENCED = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def final_answer(text: str) -> str:
    r"""The last `<answer>`, else the last `\boxed{}`, else what follows the last "answer is", else all of it."""
    text = text.strip()[-MAX_ANSWER_CHARS:]
    if tagged := _TAGGED.findall(text):
        return str(tagged[-1]).strip()
    found = last_boxed(text)
    if found is not None:
        return found.strip()
    if spoken := _SPOKEN.findall(text):
        return _trimmed(str(spoken[-1]))
    return text


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` or `\fbox{...}` whose braces balance, or of the last `\boxed 5`."""
    found = _last_box(text)
    return None if found is None else text[found.start : found.end]


def boxed(text: str) -> str | None:
    r"""The same; `\boxed{1} and \boxed{2}` is one answer in two boxes, and reads `1,2`."""
    parts: list[str] = []
    while (found := _last_box(text)) is not None:
        if parts and not _BETWEEN.fullmatch(text[found.after :]):
            break
        parts.insert(0, text[found.start : found.end])
        text = text[: found.before]
    return ",".join(parts) if parts else None


class _Box(NamedTuple):
    """Positions of a box and of its content."""

    before: int
    start: int
    end: int
    after: int


def _last_box(text: str) -> _Box | None:
    for opened in reversed(list(_BOX.finditer(text))[-_TRIES:]):
        if opened.group(1) is not None:
            return _Box(opened.start(), opened.start(1), opened.end(1), opened.end())
        end = _closing(text, opened.end())
        if end is not None:
            return _Box(opened.start(), opened.end(), end, end + 1)
    return None


def _closing(text: str, start: int) -> int | None:
    """Position of the brace that closes the one opened before `start`."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return None


def python_block(text: str) -> str | None:
    """The last fenced block of Python."""
    blocks = _FENCED.findall(text)
    return str(blocks[-1]) if blocks else None


def _trimmed(answer: str) -> str:
    """Without the marks that prose puts around an answer."""
    answer = answer.strip().strip("*$`").strip()
    return answer.removesuffix(".").rstrip("*$`").strip()
