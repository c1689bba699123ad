"""Finds the answer in what a model wrote."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_ANSWER_CHARS = 16 << 10
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(-?\d+(?:[.,]\d+)*|(?<=\s)[A-Za-z](?![A-Za-z])))")
_BETWEEN = re.compile(r"(?:[\s,;.$]|and|or|\\\[|\\\]|\\\(|\\\)|\\quad|\\text\{\s*(?:and|or)\s*\}){0,60}")
_TRIES = 32  # boxes from the end: those that never close, and those of one answer
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_SPOKEN = re.compile(r"\banswer(?:\s+is|\s*[:=])\s*:?\s*(.+)", re.IGNORECASE)
_END_OF_TAGGED = "</answer>"
_FENCE = re.compile(r"(?P<before>.*?)(?<![`~])(?P<fence>`{3,}|~{3,})(?P<info>[^`~]*)")
_LANGUAGE = re.compile(r"[\w+#-]+")
_PYTHON = frozenset({"python", "py", "python3", "py3", "ipython", "ipython3"})
_CLOSING_INDENT = 3  # spaces more than the opening fence's: what stands further in belongs to the program


def final_answer(text: str) -> str:
    r"""The last `<answer>`, else the last `\boxed{}`, else what follows the last "answer is", else all of it."""
    text = text.strip()[-MAX_ANSWER_CHARS:]
    if tagged := _TAGGED.findall(text[: text.lower().rfind(_END_OF_TAGGED) + len(_END_OF_TAGGED)]):
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
    while len(parts) < _TRIES and (found := _last_box(text)) is not None:
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
    """The last fenced block that is said to be Python, else the last of which nothing is said."""
    blocks = _fenced(text.removesuffix("\n").split("\n"))
    named = [block.text for block in blocks if block.language in _PYTHON]
    return next(reversed(named or [block.text for block in blocks if not block.language]), None)


class _Block(NamedTuple):
    """Content of a pair of fences, and the language that the first one names."""

    language: str
    text: str


class _Opening(NamedTuple):
    """An opening fence."""

    indent: int
    fence: str
    language: str


def _fenced(lines: Sequence[str]) -> list[_Block]:
    """All blocks, in one pass. The last may lack its closing fence: it was cut."""
    blocks: list[_Block] = []
    rest = iter(lines)
    for line in rest:
        opened = _opening(line)
        if opened is not None:
            held = "".join(f"{each}\n" for each in _held(rest, opened.indent, opened.fence))
            blocks.append(_Block(opened.language, held))
    return blocks


def _held(rest: Iterator[str], indent: int, fence: str) -> Iterator[str]:
    """The lines before a closing fence, as far left as the opening one."""
    for line in rest:
        last = _before_closing(line, indent, fence)
        if last != "":
            kept = line.removesuffix("\r") if last is None else last
            yield kept[min(indent, len(kept) - len(kept.lstrip())) :]
        if last is not None:
            return


def _opening(line: str) -> _Opening | None:
    """Behind other words a fence opens only with the name of Python."""
    found = _FENCE.fullmatch(line.rstrip())
    if found is None:
        return None
    language = "".join(_LANGUAGE.findall(found["info"])[:1]).lower()
    before = found["before"]
    if before.strip() and language not in _PYTHON:
        return None
    return _Opening(len(before) - len(before.lstrip()), found["fence"], language)


def _before_closing(line: str, indent: int, fence: str) -> str | None:
    """The text before a closing fence; None for a line without one."""
    text = line.rstrip()
    before = text.rstrip(fence[0])
    if len(text) - len(before) < len(fence) or fence in before:
        return None
    if before.strip():
        return before
    return "" if len(before) <= indent + _CLOSING_INDENT else None


def _trimmed(answer: str) -> str:
    """Without the marks that prose puts around an answer."""
    answer = answer.strip().strip("*$`").strip()
    return answer.removesuffix(".").rstrip("*$`").strip()
