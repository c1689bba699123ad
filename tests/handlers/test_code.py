"""A program that passes the hidden tests earns the reward; nothing that it does around them helps."""

import base64
import json
import pickle  # noqa: TID251 - this is how the data set packs its tests; we only write it
import zlib
from typing import Any

import pytest

from tests.handlers.conftest import Stages
from tests.handlers.suite import Suite, held
from workers.handlers.code.cases import Case, cases_of, limits_of
from workers.handlers.code.comparing import same_text, same_value
from workers.handlers.code.family import Code
from workers.handlers.rows import BadRow

pytestmark = pytest.mark.anyio
DOUBLE = "n = int(input())\nprint(2 * n)"
TESTS = {"inputs": ["1\n", "21\n", "-3\n"], "outputs": ["2\n", "42", "-6\n"]}
STDIN = {
    "prompt": [{"role": "user", "content": "Read a number, write its double."}],
    "reward_model": {"ground_truth": json.dumps(TESTS)},
    "time_limit": 1,
    "tools": False,
}
CALLED = {
    **STDIN,
    "reward_model": {"ground_truth": {"fn_name": "double", "inputs": [[1], [[3]]], "outputs": [[2], [[3, 3]]]}},
}
LIVE = {
    "question_content": "Double it.",
    "starter_code": "class Solution:\n    def double(self, n: List[int]) -> int:\n        ",
    "metadata": json.dumps({"func_name": "double"}),
    "public_test_cases": json.dumps([{"input": "[1]\n2", "output": "4", "testtype": "functional"}]),
    "private_test_cases": base64.b64encode(
        zlib.compress(pickle.dumps(json.dumps([{"input": "[5]\n-1", "output": "-2", "testtype": "functional"}])))
    ).decode(),
    "tools": False,
}
DEEPCODER = {
    **STDIN,
    "reward_model": {"ground_truth": json.dumps([{"type": "stdin_stdout", "input": "4", "output": "8"}])},
}


def block(program: str) -> list[str]:
    return [f"```python\n{program}\n```"]


def cheat(program: str) -> tuple[dict[str, Any], list[str]]:
    return STDIN, block(program)


SNOOP = """
import glob
seen = ""
places = ("/workspace/**", "/tmp/**", "/home/**", "/run/**", "/proc/*/cmdline", "/proc/*/environ")
for name in (name for place in places for name in glob.glob(place, recursive=True)):
    try:
        seen += open(name, errors="replace").read()
    except OSError:
        pass
n = int(input())
print("42" if "42" in seen.replace(open(__file__).read(), "") else "unknown")
"""
LINGER = """
import os, sys, time
n = input()
if os.fork() == 0:
    os.setsid()
    while True:
        time.sleep(0.01)
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                os.write(os.open(f"/proc/{pid}/fd/1", os.O_WRONLY), b"42\\n")
            except OSError:
                pass
print(2 if n == "1" else "unknown")
"""
SUITE = Suite(
    family="code",
    oracle=[
        (STDIN, block(DOUBLE)),
        (DEEPCODER, block(f"print('hello') if 0 else None\n{DOUBLE}")),
        (CALLED, block("def double(x):\n    print('noise')\n    return 2 * x")),
        (LIVE, block("class Solution:\n    def double(self, n: List[int], k: int) -> int:\n        return 2 * k")),
        (STDIN, block(f"{DOUBLE}\nsys.exit(1)")),
    ],
    hacks={
        "wrong": cheat("print(input())"),
        "right for the first test alone": cheat("input()\nprint(2)"),
        "says that it passed": cheat("print('all tests passed')"),
        "exits early with success": cheat("raise SystemExit(0)"),
        "exits at once": cheat("import os\nos._exit(0)"),
        "exits as if there were no Python": cheat("import sys\nsys.exit(127)"),
        "is right and then fails": cheat(f"{DOUBLE}\nraise RuntimeError"),
        "reads what lies about": cheat(SNOOP),
        "kills its parent": cheat("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(1, 9)"),
        "kills everybody": cheat("import os\nos.kill(-1, 9)"),
        "leaves a process that writes into others": cheat(LINGER),
        "takes too long": cheat("while True: pass"),
        "sleeps": cheat("import time\ntime.sleep(3600)"),
        "takes all memory": cheat("x = bytearray(3 << 30)\n" + DOUBLE),
        "writes without end": cheat("while True: print('2' * 100000)"),
        "is no Python": cheat("def ("),
        "is a function where a program is wanted": cheat("def double(n): return 2 * n"),
        "equals everything": (
            CALLED,
            block("class Y(list):\n    def __eq__(s, o): return True\ndef double(x): return Y()"),
        ),
        "writes its own answer": (CALLED, block("import os\nos.write(3, b'2')\nos._exit(0)")),
        "replaces json": (CALLED, block("import json\njson.dumps = lambda *a, **k: 'true'\ndef double(x): return x")),
        "no block": (STDIN, ["print(2 * int(input()))"]),
    },
)


@pytest.mark.slow
async def test_the_oracle_earns_all_and_a_hack_nothing(stages: Stages) -> None:
    await held(SUITE, Code(), stages)


async def test_the_parts_say_how_far_it_came_and_the_note_why(stages: Stages) -> None:
    score = await stages.score(Code(), STDIN, {"solution": "n = int(input())\nprint(2 * n if n < 9 else 0)"})
    assert (score.reward, dict(score.parts)) == (0.0, {"passed": 1.0, "tests": 3.0})
    assert score.note == "test 2 of 3: wrong output"


async def test_no_expectation_enters_the_sandbox(stages: Stages) -> None:
    """What a program can find of its own test is the input."""
    tests = {"inputs": ["x"], "outputs": ["a-secret-that-is-expected"]}
    program = SNOOP.replace("42", "a-secret-that-is-expected").replace("int(input())", "input()")
    row = {**STDIN, "reward_model": {"ground_truth": tests}}
    assert (await stages.score(Code(), row, {"solution": program})).note == "test 1 of 1: wrong output"


@pytest.mark.parametrize(
    ("row", "tests"),
    [
        ({"tests": {"inputs": [["1", "2"]], "outputs": ["3"]}}, [Case(stdin="1\n2", expected="3")]),
        ({"ground_truth": [{"input": "1", "output": 2}]}, [Case(stdin="1", expected="2")]),
        (
            {"ground_truth": [{"type": "function_call", "fn_name": "f", "input": [1, [2]], "output": [3]}]},
            [Case(function="f", arguments=[1, [2]], expected=[3], wrapped=True)],
        ),
        (LIVE, [Case(function="double", arguments=[[n], k], expected=2 * k, exact=True) for n, k in ((1, 2), (5, -1))]),
    ],
)
def test_tests_are_read_from_every_form(row: dict[str, Any], tests: list[Case]) -> None:
    assert cases_of(row) == tests


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"tests": {"inputs": ["1"], "outputs": []}}, "tests cannot be read: ValueError"),
        ({"ground_truth": [{"type": "function_call", "input": [], "output": []}]}, "the name of the function"),
        ({"ground_truth": []}, "the row has no tests"),
        ({"private_test_cases": "no base 64!"}, "tests cannot be read"),
        ({}, "the row has no answer"),
    ],
)
def test_a_row_whose_tests_cannot_be_read_says_why(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        cases_of(row)


def test_a_packed_row_is_read_without_running_it() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (exit, (3,))

    packed = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with pytest.raises(BadRow):
        cases_of({"private_test_cases": packed})


def test_limits_are_read_from_texts_and_bounded() -> None:
    assert limits_of({"time_limit": "2 seconds", "memory_limit": "256 megabytes"}).seconds == 4.0
    assert limits_of({"time_limit": 900, "memory_limit": 1e9}).seconds == 60.0
    assert limits_of({"memory_limit": 256}).memory_bytes == 256 << 20


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("1 2 \n3\n\n", "1 2\n3", True),
        ("1\n2", "1 2", False),
        ("0.33333331", "0.3333333", True),
        ("0.34", "0.33", False),
        ("2.0", "2", False),
        ("nan", "0.5", False),
        ("inf", "1e400.", False),
        ("", "0", False),
    ],
)
def test_texts_are_compared_as_checkers_do(output: str, expected: str, same: bool) -> None:
    assert same_text(output, expected) is same


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (["l", [1, "a"]], [1, "a"], True),
        (["t", [1, ["t", [2]]]], [1, [2]], True),
        (["s", [2, 1]], [1, 2], True),
        (["D", "0.1"], 0.1, True),
        (["F", [1, 3]], 0.3333333333, True),
        (["i", hex(10**400)], 0.5, False),
        (True, 1, False),
        (1, True, False),
        (1.0000000001, 1.0, True),
        (2.0000000001, 2, False),
        (["d", [["a", 1]]], {"a": 1}, True),
        (["d", [[1, 2]]], {"1": 2}, True),
        (["l", [1]], [1, 2], False),
        (None, 0, False),
    ],
)
def test_values_are_compared_as_json(value: Any, expected: Any, same: bool) -> None:
    assert same_value(value, expected) is same


LIVE_STDIN = {
    "question_content": "Answer.",
    "public_test_cases": json.dumps([{"input": "4\n", "output": "8\n", "testtype": "stdin"}]),
    "tools": False,
}


@pytest.mark.parametrize(
    ("program", "reward"),
    [
        ("n = int(input())\nprint(2 * n)\nsys.exit(1)", 1.0),  # names of its prelude, any exit code
        ("d = defaultdict(int)\nd[0] = gcd(8, 16)\nprint(d[0] + floor(0.5))", 1.0),
        ("def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\nprint(f(40000) - 39992)", 1.0),
        ("print('8.000')", 1.0),  # the same number
        ("print('8.0000001')", 0.0),  # another one
        ("print('  8  ')\nprint()", 1.0),
        ("print('8', '8')", 0.0),
        ("if __name__ == '__main__':\n    print(8)", 1.0),
        ("from __future__ import annotations\nprint(2 * int(open(0).read()))", 1.0),
        ("import os\nprint(8, flush=True)\nos._exit(0)", 1.0),
        ("print(8)\nraise ValueError", 0.0),
        ("import threading\nthreading.Thread(target=print, args=(8,)).start()", 1.0),
    ],
)
async def test_programs_are_run_as_livecodebench_does(stages: Stages, program: str, reward: float) -> None:
    assert (await stages.score(Code(), LIVE_STDIN, {"solution": program})).reward == reward


@pytest.mark.parametrize(
    ("name", "expected", "program", "reward"),
    [
        ("add", "[1, 2]", "class Solution:\n    def add(self, x):\n        return (1, 2)", 1.0),
        ("add", "[[1, 2]]", "class Solution:\n    def add(self, x):\n        return [(1, 2)]", 0.0),  # as there
        ("product", "3", "def product(x):\n    return 3", 1.0),  # also a name of its prelude
        ("f", "1", "def f(x):\n    return True", 1.0),
        ("f", "0.5", "def f(x):\n    return 0.5000001", 0.0),
        ("f", "[1]", "class Y(list):\n    __eq__ = lambda *a: True\ndef f(x):\n    return Y()", 0.0),
    ],
)
async def test_functions_are_compared_as_livecodebench_does(
    stages: Stages, name: str, expected: str, program: str, reward: float
) -> None:
    row = {
        "question_content": "Answer.",
        "metadata": json.dumps({"func_name": name}),
        "public_test_cases": json.dumps([{"input": "1", "output": expected, "testtype": "functional"}]),
        "tools": False,
    }
    assert (await stages.score(Code(), row, {"solution": program})).reward == reward
