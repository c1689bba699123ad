"""Medians, goals and tables of a benchmark, printed and written to `bench/out/NAME.json`."""

import operator
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

OUT = Path(__file__).with_name("out")
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over several rounds."""

    median: float
    min: float
    max: float
    rounds: int


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and what it should be. `value` is None where it could not be measured: then the goal is not met."""

    value: float | None
    goal: str
    met: bool
    note: str = ""


def goal(value: float | None, wanted: str, note: str = "") -> Goal:
    """Judges a value by a comparison such as `>= 4`.

    >>> goal(1.2, ">= 1").met, goal(1.2, "< 1").met, goal(None, ">= 1").met
    (True, False, False)
    """
    match = re.fullmatch(r"(>=|<=|==|>|<) *(-?\d+(?:\.\d+)?)", wanted)
    if match is None:
        raise ValueError(f"{wanted!r} is no goal: write a comparison and a number, such as '>= 4'")
    met = value is not None and COMPARISONS[match[1]](value, float(match[2]))
    return Goal(value=None if value is None else significant(value), goal=wanted, met=met, note=note)


def significant(value: float, digits: int = 4) -> float:
    """Rounds to significant digits: more would pretend to a precision that no benchmark has.

    >>> significant(123456.0), significant(0.0123456), significant(0.0)
    (123500.0, 0.01235, 0.0)
    """
    return float(f"{value:.{digits}g}")


def spread(values: Sequence[float]) -> Spread:
    """Median, minimum and maximum.

    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, min=1.0, max=3.0, rounds=3)
    """
    if not values:
        raise ValueError("no spread of no values: no round gave this figure")
    return Spread(
        median=significant(statistics.median(values)),
        min=significant(min(values)),
        max=significant(max(values)),
        rounds=len(values),
    )


def summarise(rows: Sequence[Mapping[str, Any]], case_field: str = "case") -> dict[str, dict[str, Spread]]:
    """Spread of every numeric field of every case. Rows of failed rounds lack fields and do not count.

    >>> summarise([{"case": "a", "x": 1}, {"case": "a", "x": 3}, {"case": "b", "error": "no"}])["a"]["x"].median
    2.0
    """
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        fields = found.setdefault(str(row[case_field]), {})
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                fields.setdefault(name, []).append(float(value))
    return {case: {name: spread(values) for name, values in fields.items()} for case, fields in found.items()}


def ratios(rows: Sequence[Mapping[str, Any]], field: str, above: str, below: str) -> list[float]:
    """`field` of case `above` over that of case `below`, round by round: drift of the machine cancels out.

    >>> rows = [{"case": c, "round": r, "x": x} for c, r, x in [("a", 0, 8), ("b", 0, 2), ("a", 1, 9), ("b", 1, 3)]]
    >>> ratios(rows, "x", "a", "b")
    [4.0, 3.0]
    """
    by_round = {(row["case"], row["round"]): float(row[field]) for row in rows if field in row}
    numbers = sorted({row["round"] for row in rows})
    pairs = [(by_round.get((above, number)), by_round.get((below, number))) for number in numbers]
    return [upper / lower for upper, lower in pairs if upper is not None and lower]


def figure(value: float) -> str:
    """A number as short as its size allows.

    >>> figure(12345.6), figure(123.45), figure(1.234), figure(0.0)
    ('12,346', '123', '1.23', '0')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cell(of: Spread | None, *, with_range: bool = False) -> str:
    """The median, with the range when asked for and when there is one.

    >>> cell(Spread(median=2.0, min=1.0, max=3.0, rounds=3), with_range=True), cell(None)
    ('2 (1..3)', '-')
    """
    if of is None:
        return "-"
    if with_range and of.rounds > 1:
        return f"{figure(of.median)} ({figure(of.min)}..{figure(of.max)})"
    return figure(of.median)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be: the first to the left, the others to the right.

    >>> print(table(["case", "n"], [["a", "10"], ["long", "2"]]))
    case   n
    ----  --
    a     10
    long   2
    """
    widths = [max(len(line[k]) for line in [header, *rows]) for k in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            text.ljust(width) if k == 0 else text.rjust(width)
            for k, (text, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def goal_lines(goals: Mapping[str, Goal]) -> str:
    """One line a goal.

    >>> print(goal_lines({"ratio": goal(5.0, ">= 4"), "idle": goal(None, "< 1", "not run")}))
    met      ratio: 5 (goal >= 4)
    NOT met  idle: not measured (goal < 1); not run
    """
    lines = []
    for name, each in goals.items():
        value = "not measured" if each.value is None else figure(each.value)
        note = f"; {each.note}" if each.note else ""
        lines.append(f"{'met' if each.met else 'NOT met':8} {name}: {value} (goal {each.goal}){note}")
    return "\n".join(lines)


def write(name: str, goals: Mapping[str, Goal], body: Mapping[str, Any]) -> Path:
    """Writes `bench/out/NAME.json`: `name` and `goals` first, then the body (machine, versions, cases, rounds)."""
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    document = {"name": name, "goals": dict(goals), **body}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))
    return path
