"""Finds the answer in what a model wrote."""

import re

MAX_ANSWER_CHARS = 16 << 10
_BOX = "\\boxed{"
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
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    if spoken := _SPOKEN.findall(text):
        return _trimmed(str(spoken[-1]))
    return text


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` whose braces balance."""
    found = _last_box(text)
    return None if found is None else text[slice(*found)]


def boxed(text: str) -> str | None:
    r"""The same; `\boxed{1} and \boxed{2}` is one answer in two boxes, and reads `1,2`."""
    parts: list[str] = []
    while (found := _last_box(text)) is not None:
        start, end = found
        if parts and not _BETWEEN.fullmatch(text[end + 1 :]):
            break
        parts.insert(0, text[start:end])
        text = text[: start - len(_BOX)]
    return ",".join(parts) if parts else None


def _last_box(text: str) -> tuple[int, int] | None:
    """Where the content of the last whole box begins and ends."""
    end = len(text)
    for _ in range(_TRIES):
        start = text.rfind(_BOX, 0, end)
        if start < 0:
            return None
        depth = 0
        for place in range(start + len(_BOX) - 1, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return start + len(_BOX), place
        end = start
    return None


def python_block(text: str) -> str | None:
    """The last fenced block of Python."""
    blocks = _FENCED.findall(text)
    return str(blocks[-1]) if blocks else None


def _trimmed(answer: str) -> str:
    """Without the marks that prose puts around an answer."""
    answer = answer.strip().strip("*$`").strip()
    return answer.removesuffix(".").rstrip("*$`").strip()
