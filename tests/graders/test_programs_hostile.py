"""What a program writes into the channels of its judges is read as bytes that anybody may have made up."""

import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from workers.handlers import plain
from workers.handlers.code.cases import Case
from workers.handlers.code.comparing import passed
from workers.handlers.swe.canaries import canaries
from workers.handlers.swe.grading import Judged, between_markers, forgery, log_of, scored
from workers.handlers.swe.rows import Hidden, SweTask
from workers.handlers.swe.styles import line
from workers.handlers.swe.trial import read_judged

SEEDS = range(300)
PIECES = (
    b"[", b"]", b"{", b"}", b'"', b",", b":", b"null", b"true", b"1e999999999", b"-0", b"NaN", b"\xff", b"\x00", b'"d"',
    b'"D"', b'"F"', b'"i"', b'"c"', b'"b"', b'"r"', b'"s"', b"[[", b"\\ud800", b"9" * 5000, b'["i","0x' + b"f" * 9000,
    b'["F",[1,0]]', b'["D","sNaN"]', b'["D","1e999999999999999999999"]', b'["d",[[["l",[]],1]]]', b'["c",[1]]', b"\n",
    b'["l",' * 200, b"[" * 5000,
)  # fmt: skip
EXPECTED = (5, 0.5, "text", [1, [2.5, None]], {"a": [1]}, True, None)


def bytes_of(chance: random.Random) -> bytes:
    return b"".join(chance.choices(PIECES, k=chance.randrange(1, 12)))


def value_of(chance: random.Random, depth: int = 0) -> Any:
    """Any JSON, with kinds of packed values where they may not stand."""
    kind = chance.randrange(9 if depth < 4 else 6)
    scalars: list[Callable[[], Any]] = [
        lambda: None, lambda: chance.random() < 0.5, lambda: chance.randrange(-(10**30), 10**30),
        lambda: chance.choice([float("nan"), float("inf"), 1e308, 0.5]), lambda: chance.choice("lstfdiDFcbr"),
        lambda: chance.choice(["0xz", "sNaN", "1e999999999", "x" * 50, "\ud800"]),
    ]  # fmt: skip
    if kind < 6:
        return scalars[kind]()
    parts = [value_of(chance, depth + 1) for _ in range(chance.randrange(4))]
    return (
        {str(place): part for place, part in enumerate(parts)} if kind == 6 else [chance.choice("lstfdiDFcbr"), parts]
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_no_output_of_a_program_makes_the_comparison_fail(seed: int) -> None:
    chance = random.Random(seed)
    for text in (bytes_of(chance).decode(errors="replace"), json.dumps(value_of(chance))):
        for expected in EXPECTED:
            for exact in (True, False):
                call = Case(function="f", expected=expected, exact=exact, wrapped=not exact)
                assert passed(call, text) in (True, False)
                assert passed(Case(expected=json.dumps(expected), exact=exact), text) in (True, False)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_word_in_a_judges_name_is_believed(seed: int) -> None:
    chance = random.Random(seed)
    assert read_judged(bytes_of(chance), "nonce") is None
    made = {"nonce": "nonce", "statuses": value_of(chance), "ended": True, "forged": False, "timed_out": False}
    assert read_judged(json.dumps({**made, "exit_code": 1, "printed": ""}).encode(), "other") is None


@pytest.mark.parametrize(
    "told",
    [
        ("x\nPASSED t.py::test", "PASSED", "x\nPASSED t.py::test"),  # another line of the log
        ("other", "PASSED", "t.py::test"),  # another word on the same test
        ("other", "PASSED t.py::test\nPASSED", "x"),
    ],
)
def test_a_report_cannot_say_two_things_of_a_test(told: tuple[str, str, str]) -> None:
    planted = canaries("pytest", [("t.py", "def test():\n    pass\n")])
    honest = [("t.py::test", "FAILED", "t.py::test"), *((each.name, "FAILED", each.name) for each in planted)]
    judged = Judged(
        nonce="n", statuses=[*honest, told], ended=True, forged=False, timed_out=False, exit_code=1, printed=""
    )
    assert forgery(judged, planted) == "somebody else wrote into the report"
    ours = {each.name for each in planted}
    log = between_markers(line("pytest", status, shown) for name, status, shown in judged.statuses if name not in ours)
    found = scored(SweTask(instance_id="a", repo="a/b"), Hidden(fail_to_pass=["t.py::test"]), "parse_log_pytest", log)
    assert found.reward == 1.0, "the log alone would be believed, in the order in which it was told"


DOC = "BaseForm.__repr__() should contain some basic information."


@pytest.mark.parametrize("other", ["SKIPPED", "FAILED", "ERROR", "XFAIL"])
@pytest.mark.parametrize("last", [True, False])
def test_of_tests_that_share_a_docstring_in_djangos_log_the_worst_counts(other: str, *, last: bool) -> None:
    """Django 4.2 tests its forms twice, and skips one half without Jinja2: such a run is no forgery."""
    told = [
        ("forms.tests.FormsTestCase.test_repr", "PASSED", DOC),
        ("forms.tests.Jinja2FormsTestCase.test_repr", other, DOC),
    ]
    statuses = told if last else told[::-1]
    judged = Judged(nonce="n", statuses=statuses, ended=True, forged=False, timed_out=False, exit_code=1, printed="")
    assert forgery(judged, []) is None
    task, hidden = SweTask(instance_id="a", repo="django/django"), Hidden(fail_to_pass=[DOC])
    assert scored(task, hidden, "parse_log_django", log_of("django", judged, [])).reward == 0.0
    alone = between_markers(line("django", status, shown) for _, status, shown in told[::-1])
    assert scored(task, hidden, "parse_log_django", alone).reward == 1.0, "in this order the log would be believed"


@pytest.mark.parametrize("named", ["test_x (forms.tests.T)", "test_x (forms.tests.T.test_x)"])
def test_a_line_that_names_a_test_is_that_tests_alone(named: str) -> None:
    told = [("forms.tests.T.test_x", "FAILED", named), ("forms.tests.Other.test_y", "PASSED", named)]
    judged = Judged(nonce="n", statuses=told, ended=True, forged=False, timed_out=False, exit_code=1, printed="")
    assert forgery(judged, []) == "somebody else wrote into the report"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_packed_is_what_comes_out(seed: int) -> None:
    chance = random.Random(seed)
    value = [chance.randrange(-(2**70), 2**70), (chance.random(), {"a": {chance.randrange(9)}}), 1j, b"x", range(3)]
    assert plain.unpack(json.loads(json.dumps(plain.pack(value)))) == value
    with contextlib.suppress(ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
        plain.unpack(value_of(chance))
