r"""Whether an answer equals one of the accepted ones, by math-verify, in the process of `workers.handlers.forks`."""

from collections.abc import Sequence

import msgspec

MAX_ANSWER_CHARS = 2000
_BOX = "\\boxed{"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """An answer and those that count as right, all without their box."""

    answer: str
    accepted: Sequence[str]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`unread`: the accepted answers are no mathematics, so that only equal text could have been right."""

    right: bool = False
    unread: bool = False


def load() -> None:
    """Takes some seconds: sympy."""
    import math_verify  # noqa: F401


def reply_to(line: bytes) -> bytes:
    """Never raises for an answer, whatever it is."""
    return msgspec.json.encode(equal(msgspec.json.decode(line, type=Question)))


def equal(question: Question) -> Verdict:
    """Its own time limits are off: the fork's is the only one, and it cannot be caught."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    configs = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    answer = parse(_boxed(question.answer), configs, parsing_timeout=0)
    read = False
    for accepted in question.accepted:
        gold = parse(_boxed(accepted), configs, parsing_timeout=0)
        read = read or bool(gold)
        if gold and answer and verify(gold, answer, timeout_seconds=None):
            return Verdict(right=True)
    return Verdict(unread=not read)


def _boxed(text: str) -> str:
    return text if _BOX in text else f"{_BOX}{text}}}"
