"""Whether what a program gave is what was expected. Decided here, in the worker: no expectation enters a sandbox."""

import json
import math
from typing import Any

from workers.handlers.code.cases import Case

TOLERANCE = 1e-6


def passed(test: Case, output: str) -> bool:
    """`output`: what the program wrote, or the JSON of what the function returned."""
    if test.function is None:
        return same_text(output, str(test.expected))
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        return False
    return same_value(value, test.expected) or (test.wrapped and same_value([value], test.expected))


def same_text(output: str, expected: str) -> bool:
    """Line by line, whatever stands at the ends of lines and of the text. Fractions may differ by 10⁻⁶."""
    ours, theirs = _lines(output), _lines(expected)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def same_value(value: Any, expected: Any) -> bool:
    """As JSON. A truth value is no number."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return value == expected or (isinstance(expected, float) and _close(float(value), expected))
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same_value, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(same_value(value[name], expected[name]) for name in value)
    return type(value) is type(expected) and bool(value == expected)


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


def _close(value: float, expected: float) -> bool:
    return math.isfinite(value) and math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
