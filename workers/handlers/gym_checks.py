"""Second opinions on reasoning-gym's scorers: some give everything for what is wrong.

Where a data set is named in `RIGHT`, our own reading says what is right. Where it is named in `FORMS`, an answer of
another form is wrong, whatever the scorer made of it. Those in `REFUSED` are not offered at all. A partial score of
reasoning-gym's stays as it is.
"""

import ast
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from workers.syntax import parsed

Check = Callable[[str, Mapping[str, Any]], bool]
REFUSED: Final = {
    "propositional_logic": "its scorer gives everything for a premise that is repeated as the conclusion",
}
_COIN_ERROR = Fraction(1, 1000)  # relative: a probability may be rounded to three digits
_POOLED_ERROR = 0.00501  # the question asks for two decimal places
_ROOT_ERROR = 1e-4  # and this one for four
NEARLY: Final = 1 - 1e-9  # a sum of parts that is everything
_PLAIN_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)"
_FORMED: Final = {
    "advanced_geometry": (
        rf"\(?{_PLAIN_NUMBER}\s*,\s*{_PLAIN_NUMBER}\)?|{_PLAIN_NUMBER}\s*°?",
        "what follows the coordinates is read with them",
    ),
    "complex_arithmetic": (rf"\(?{_PLAIN_NUMBER}?(?: ?[+-] ?(?:\d+(?:\.\d*)?|\.\d+)?)?[ij]?\)?", "`nan` earns 1"),
    "fraction_simplification": (
        r"\$?\s*(?:\\d?frac\s*\{\s*-?\d+\s*\}\s*\{\s*-?\d+\s*\}|-?\d+\s*/\s*-?\d+)\s*\$?",
        "what follows the fraction is ignored",
    ),
    "kakurasu": (r"[01\s]+", "what follows the grid is ignored"),
    "quantum_lock": (r"[A-C](?:\s*(?:→|->|,|\s)\s*[A-C])*", "every letter A to C in a text is a move"),
    "rubiks_cube": (r"[FBUDLRfbudlrMESmesXYZxyz'2i\s]+", "what is no move is ignored"),
    "sokoban": (r"[LRUD\s]+", "what is no move is ignored"),
    "survo": (r"[\d\s]+", "what follows the grid is ignored"),
    "time_intervals": (
        r"(?:\d+ days?, )?\d{1,3}:\d\d(?::\d\d(?:\.\d{3})?)?|\d+(?: days?)?",
        "a minus before hours is ignored, and .5 s is 5 ms",
    ),
    "tower_of_hanoi": (
        r"(?:Move disk \d+ from Peg \d+ to Peg \d+\s*)+",
        "what stands before a move is ignored",
    ),
}
FORMS: Final = {name: re.compile(form, re.IGNORECASE) for name, (form, _) in _FORMED.items()}


def checked(name: str, score: float, answer: str, entry: Mapping[str, Any]) -> float:
    """The reward of an answer for which reasoning-gym's scorer gave `score`."""
    if name in RIGHT and RIGHT[name][0](answer.strip(), entry):
        return 1.0
    well_formed = name not in FORMS or FORMS[name].fullmatch(answer.strip()) is not None
    if not math.isfinite(score) or (score >= NEARLY and (name in RIGHT or not well_formed)):
        return 0.0
    return min(score, 1.0)


def reasons() -> dict[str, str]:
    """Every data set that is not scored by reasoning-gym alone, and why."""
    own = {name: reason for name, (_, reason) in RIGHT.items()}
    return {**own, **{name: reason for name, (_, reason) in _FORMED.items()}, **REFUSED}


def _number(text: str) -> Fraction | None:
    """A decimal number or a fraction of whole numbers; commas between thousands."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text.strip().removeprefix("$"))
    if len(text) > 400 or not re.fullmatch(rf"{_PLAIN_NUMBER}(?:[eE][+-]?\d{{1,3}})?|[+-]?\d+ ?/ ?\d+", text):
        return None
    try:
        return Fraction(text.replace(" ", "").rstrip("."))
    except ZeroDivisionError:
        return None


def _numbers(text: str) -> list[Fraction] | None:
    found = [_number(part) for part in text.split(",")]
    return [number for number in found if number is not None] if None not in found else None


def _same_number(answer: str, entry: Mapping[str, Any]) -> bool:
    return (said := _number(answer)) is not None and said == _number(entry["answer"])


def _probability(answer: str, entry: Mapping[str, Any]) -> bool:
    said, right = _number(answer), _number(entry["answer"])
    return said is not None and right is not None and abs(said - right) <= _COIN_ERROR * right


def _same_text(answer: str, entry: Mapping[str, Any]) -> bool:
    return answer.casefold() == str(entry["answer"]).strip().casefold()


def _same_words(answer: str, entry: Mapping[str, Any]) -> bool:
    return [word.strip() for word in answer.split(",")] == list(entry["metadata"]["sorted_words"])


def _same_grid(answer: str, entry: Mapping[str, Any]) -> bool:
    try:
        said: object = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    right: object = json.loads(entry["answer"])
    return said == right


def _clauses(text: str) -> dict[str, str] | None:
    """The role that a text gives each person; None for a text that says anything else, or somebody twice."""
    parts = re.split(r"\s*(?:,\s*and\s+|,\s*|\s+and\s+)", text.strip().rstrip("."))
    found = [re.fullmatch(r"(\w+) is an? (\w+)", part.strip(), re.IGNORECASE) for part in parts]
    said = {each[1].casefold(): each[2].casefold() for each in found if each}
    return said if len(said) == len(parts) else None


def _same_roles(answer: str, entry: Mapping[str, Any]) -> bool:
    said = _clauses(answer)
    return said is not None and said == _clauses(entry["answer"])


def _listed(text: str) -> list[Fraction] | None:
    try:
        found = json.loads(text.replace("'", '"'))
    except (ValueError, RecursionError):
        return None
    return _numbers(",".join(map(str, found))) if isinstance(found, list) and found else None


def _same_list(answer: str, entry: Mapping[str, Any]) -> bool:
    said = _listed(answer)
    return said is not None and said == _listed(entry["answer"])


def _same_roots(answer: str, entry: Mapping[str, Any]) -> bool:
    """No real root is said by an empty string in quotes."""
    if not entry["answer"].strip("\"' "):
        return answer in {'""', "''"}
    said, right = _numbers(answer), _numbers(entry["answer"])
    if said is None or right is None or len(said) != len(right):
        return False
    return all(abs(one - other) <= _ROOT_ERROR for one, other in zip(sorted(said), sorted(right), strict=True))


def _pooled(answer: str, entry: Mapping[str, Any]) -> bool:
    rows, right = (
        [[_number(cell) for cell in line.split()] for line in text.strip().splitlines()]
        for text in (answer, entry["answer"])
    )
    if [len(row) for row in rows] != [len(row) for row in right]:
        return False
    pairs = [pair for row, other in zip(rows, right, strict=True) for pair in zip(row, other, strict=True)]
    return all(one is not None and other is not None and abs(one - other) <= _POOLED_ERROR for one, other in pairs)


_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def _calculated(node: ast.AST, used: list[int]) -> Fraction:
    """The value of a term of whole numbers; raises for every other one. `used` takes the numbers."""
    match node:
        case ast.Expression(body=body):
            return _calculated(body, used)
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            used.append(value)
            return Fraction(value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_calculated(left, used), _calculated(right, used))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_calculated(operand, used)
        case _:
            raise ValueError(type(node).__name__)


def _makes(answer: str, numbers: list[int], target: int) -> bool:
    used: list[int] = []
    written = answer.replace("×", "*").replace("÷", "/").replace("−", "-").removesuffix(f"= {target}")
    try:
        value = _calculated(parsed(written.strip()[:400], mode="eval"), used)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return False
    return value == target and Counter(used) == Counter(numbers)


def _makes_24(answer: str, entry: Mapping[str, Any]) -> bool:
    return _makes(answer, [int(number) for number in entry["metadata"]["numbers"]], 24)


def _makes_target(answer: str, entry: Mapping[str, Any]) -> bool:
    return _makes(answer, [int(number) for number in entry["metadata"]["numbers"]], entry["metadata"]["target"])


RIGHT: Final[Mapping[str, tuple[Check, str]]] = {
    "coin_flip": (_probability, "`0`, or a beginning of the right digits, earns 1"),
    "countdown": (_makes_target, "any term of sympy's is evaluated"),
    "game_of_life": (_same_grid, "a larger grid earns 1"),
    "game_of_life_halting": (_same_text, "every text earns 1"),
    "gsm_symbolic": (_same_number, "only the first number of a text is read, without its sign"),
    "knights_knaves": (_same_roles, "what else is said is ignored"),
    "letter_jumble": (_same_text, "more words than there are earn 1"),
    "number_format": (_same_number, "a number that differs by less than 0.01 earns 1"),
    "number_sorting": (_same_list, "numbers that differ by 1 earn 1"),
    "polynomial_equations": (_same_roots, "where there is no root, every text without a number earns 1"),
    "pool_matrix": (_pooled, "numbers that differ by 1 % earn 1"),
    "spell_backward": (_same_text, "what follows the word is ignored, and may earn more than 1"),
    "word_sorting": (_same_words, "what follows the words is ignored"),
    "puzzle24": (_makes_24, "other numbers than the given ones, and 24.9, earn 1"),
}
