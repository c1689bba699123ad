r"""Equality of an answer with an accepted one, by math-verify, in the process of `workers.handlers.forks`."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from workers.handlers.answers import last_boxed
from workers.handlers.blame import ScorerReply, fault_of
from workers.handlers.math.reading import measured, misread, same, spelled, with_words_aside, without_percent

MAX_ANSWER_CHARS = 2000
_PART = re.compile(r"[,;]|\\text\s*\{\s*(?:and|or)\s*\}")
_EQUALS = re.compile(r"(?<![<>!:=])=(?!=)")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """An answer and those that count as right, all without their box. `percent`: the question speaks of percent."""

    answer: str
    accepted: Sequence[str]
    percent: bool = False


class MathVerdict(ScorerReply, frozen=True, kw_only=True):
    """`unread`: the accepted answers are no mathematics, so that only equal text could have been right."""

    right: bool = False
    unread: bool = False
    note: str | None = None


def load() -> None:
    """Takes some seconds: sympy."""
    import math_verify  # noqa: F401


def reply_to(line: bytes) -> bytes:
    """The verdict, or what math-verify raised."""
    try:
        return msgspec.json.encode(equal(msgspec.json.decode(line, type=Question)))
    except Exception as error:  # sympy raises whatever a strange term leads to
        return msgspec.json.encode(MathVerdict(fault=fault_of(error)))


def equal(question: Question) -> MathVerdict:
    """Its own time limits are off: the fork's is the only one, and it cannot be caught."""
    notes: list[str] = []
    read = False
    for accepted in question.accepted:
        if same(question.answer, accepted):
            return MathVerdict(right=True)
        gold = spelled(accepted)
        answer = spelled(question.answer, other=gold)
        read = read or bool(_parsed(gold))
        if note := misread(answer, gold):
            notes.append(note)
        elif any(_means(*pair) for pair in without_percent(answer, gold, asked=question.percent)):
            if not _contradicts(answer):
                return MathVerdict(right=True)
            notes.append("its equation is false")
    return MathVerdict(unread=not read, note=notes[0] if notes else None)


def _means(answer: str, gold: str) -> bool:
    """Of numbers with units math-verify reads the numbers alone."""
    said, wanted = measured(answer), measured(gold)
    if said and wanted:
        return said.dimensions == wanted.dimensions and said.in_base_units == wanted.in_base_units
    return _verified(_parsed(gold), _parsed(answer))


def _parsed(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    text = with_words_aside(text)
    inside = last_boxed(text)
    configs = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    found: list[Any] = parse(f"\\boxed{{{text if inside is None else inside}}}", configs, parsing_timeout=0)
    return found


def _verified(gold: list[Any], answer: list[Any]) -> bool:
    from math_verify import verify

    return bool(gold and answer) and bool(verify(gold, answer, timeout_seconds=None))


def _contradicts(answer: str) -> bool:
    """True if it has an equation of numbers that are not equal: math-verify reads the right side alone."""
    for part in _PART.split(answer):
        sides = [_parsed(side) for side in _EQUALS.split(part)] if "=" in part else []
        numbers = [side for side in sides if side and getattr(side[0], "is_number", False)]
        if any(not _verified(first, second) for first, second in itertools.pairwise(numbers)):
            return True
    return False
