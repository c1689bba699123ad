"""Comparison of a program's output with the expected one. Made here, in the worker: no expectation enters a sandbox.

Rows of LiveCodeBench are compared as its own harness does; the others forgive more, as the checkers of their data sets
do. What a program wrote is hostile: nothing of it is hashed, unpickled or computed with, whatever its length.
"""

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

from workers.handlers import plain
from workers.handlers.code.cases import Case

TOLERANCE = 1e-6
_SCALARS = (type(None), bool, int, float, str)


def passed(test: Case, output: str) -> bool:
    """`output`: what the program wrote, or what the function returned as `plain` packs it."""
    if test.function is None:
        return same_decimals(output, str(test.expected)) or (not test.exact and same_text(output, str(test.expected)))
    try:
        value = json.loads(output)
        if test.exact:
            return same_exactly(value, test.expected)
        return same_value(value, test.expected) or (test.wrapped and same_value(["l", [value]], test.expected))
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        return False  # no solution packs such a thing


def same_decimals(output: str, expected: str) -> bool:
    """LiveCodeBench: line by line without the space around it, as text or as exactly the same decimal numbers."""
    ours, theirs = ([line.strip() for line in text.strip().split("\n")] for text in (output, expected))
    return len(ours) == len(theirs) and all(map(_same_decimal_line, ours, theirs))


def same_text(output: str, expected: str) -> bool:
    """Line by line, whatever stands at the ends of lines and of the text. Fractions may differ by 10⁻⁶."""
    ours, theirs = _lines(output), _lines(expected)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def same_exactly(value: Any, expected: Any, *, outermost: bool = True) -> bool:
    """LiveCodeBench: equal to Python, where the outermost tuple may stand for a list."""
    if not isinstance(value, list):
        return isinstance(value, _SCALARS) and bool(value == expected)
    kind, parts = value
    if kind == "l" or (kind == "t" and outermost):
        return (
            isinstance(expected, list)
            and len(parts) == len(expected)
            and all(same_exactly(*pair, outermost=False) for pair in zip(parts, expected, strict=True))
        )
    if kind == "d":
        return isinstance(expected, dict) and _same_parts(
            parts, expected, lambda one, other: same_exactly(one, other, outermost=False)
        )
    return bool(_number(value) == expected)


def same_value(value: Any, expected: Any) -> bool:
    """As JSON, where tuples and sets are lists. A truth value is no number. Fractions may differ by 10⁻⁶."""
    if not isinstance(value, list):
        return isinstance(value, _SCALARS) and _same_scalar(value, expected)
    kind, parts = value
    if kind in plain.PARTS:
        if not isinstance(expected, list) or len(parts) != len(expected):
            return False
        ordered = sorted(parts) if kind in {"s", "f"} else parts
        return all(map(same_value, ordered, expected))
    if kind == "d":
        texts = [[key if isinstance(key, str) else json.dumps(key), part] for key, part in parts]
        return isinstance(expected, dict) and _same_parts(texts, expected, same_value)
    return _same_scalar(_number(value), expected)


def _same_parts(parts: Any, expected: dict[str, Any], same: Any) -> bool:
    if len(parts) != len(expected) or not all(isinstance(key, str) and key in expected for key, _ in parts):
        return False
    return len({key for key, _ in parts}) == len(parts) and all(same(part, expected[key]) for key, part in parts)


def _number(packed: list[Any]) -> Any:
    kind, parts = packed
    return plain.number(kind, parts)


def _same_scalar(value: Any, expected: Any) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float | Decimal | Fraction) and isinstance(expected, int | float):
        return bool(value == expected) or (isinstance(expected, float) and _close(value, expected))
    return type(value) is type(expected) and bool(value == expected)


def _same_decimal_line(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    words, expected = ours.split(), theirs.split()
    try:
        return len(words) == len(expected) and [*map(Decimal, words)] == [*map(Decimal, expected)]
    except (ValueError, ArithmeticError):
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _same_line(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    words, expected = ours.split(), theirs.split()
    return len(words) == len(expected) and all(map(_same_word, words, expected))


def _same_word(word: str, expected: str) -> bool:
    if word == expected:
        return True
    if "." not in expected:  # a whole number, or no number
        return False
    try:
        return _close(float(word), float(expected))
    except ValueError:
        return False


def _close(value: float | Decimal | Fraction, expected: float) -> bool:
    try:
        return math.isfinite(value) and math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # an integer beyond all fractions
        return False
