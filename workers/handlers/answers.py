"""Finds the answer in what a model wrote."""

import re

MAX_ANSWER_CHARS = 16 << 10
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
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    opening = start + len("\\boxed")
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[opening + 1 : place]
    return last_boxed(text[:start])


def python_block(text: str) -> str | None:
    """The last fenced block of Python."""
    blocks = _FENCED.findall(text)
    return str(blocks[-1]) if blocks else None


def _trimmed(answer: str) -> str:
    """Without the marks that prose puts around an answer."""
    answer = answer.strip().strip("*$`").strip()
    return answer.removesuffix(".").rstrip("*$`").strip()
