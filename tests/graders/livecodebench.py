"""LiveCodeBench's own harness, as lighteval packages it, on the programs that our grader of its rows is measured with.

    python -m tests.graders.livecodebench HARNESS < ASKED > VERDICTS      (JSON; started by `official`)

The harness runs a program in its own process, which it changes for good: each has a child of its own. It is no sandbox,
so no hack is shown to it.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.graders.programs_corpus import FAST, Case, cases

TIMEOUT_S = 6  # the harness's default
TEXTS = (
    "1", "1.0", "1.00", "01", "+1", "1e0", "1.0000001", "1,0", "-0", "0", "0.0", "0.3", "0.30", ".3", "0.1 0.2",
    "0.1  0.2", "0.10 0.2", "YES", "yes", "Yes", "nan", "NaN", "inf", "Infinity", "a b", "a  b", "a\nb", "a\n\nb",
    "a \nb", "1 a", "1.0 a", "100000000000000000000000001", "100000000000000000000000001.0", "1_0", "10", "[1, 2]",
    "[1,2]", "", "\xbd", "\u0661",
)  # fmt: skip
ENDS = ("", "\n", "\n\n", " \n", "\r\n", "\t")
EXPECTED = (
    "1", "0.3", "0.1 0.2", "YES", "a b", "a\nb", "1 a", "100000000000000000000000001", "10", "[1, 2]", "nan", "0",
)  # fmt: skip
VALUES = (
    "1", "1.0", "True", "'1'", "None", "0", "False", "-0.0", "0.1 + 0.2", "0.3", "[1, 2]", "(1, 2)", "[1.0, 2]",
    "[(1, 2)]", "[[1, 2]]", "((1, 2),)", "{1, 2}", "frozenset([1, 2])", "range(1, 3)", "iter([1, 2])", "{'a': 1}",
    "{'a': 1.0}", "{1: 2}", "{'a': (1,)}", "OrderedDict(a=1)", "Counter('a')", "deque([1, 2])", "'ab'", "b'ab'",
    "['a', 'b']", "('a', 'b')", "10 ** 30", "1e30", "float('nan')", "float('inf')", "Decimal(1)", "Fraction(1)",
    "Fraction(3, 10)", "1 + 0j", "[]", "()", "{}", "''", "[[]]", "[None]", "namedtuple('P', 'x y')(1, 2)",
    "type('L', (list,), {})([1, 2])", "type('I', (int,), {})(1)",
)  # fmt: skip
RETURNED = (
    "1", "0.3", "true", "null", "[1, 2]", "[[1, 2]]", '{"a": 1}', '"ab"', '["a", "b"]', "[]", "1e30",
)  # fmt: skip
KINDS = {
    "right": "right in odd forms",
    "near": "nearly right",
    "text": "a text written, for another expected",
    "value": "a value returned, for another expected",
}
# Right programs that the harness does not pass, and why.
REASONS = {
    "total: opens descriptor 0": "the harness replaces `sys.stdin` alone",
    "total: reads bytes": "the harness's stand-in for `sys.stdin` gives text alone",
    "total: leaves at once": "the harness's own process ends",
    "total: prints at its end": "the harness does not wait for what runs at exit",
    "total: a child process": "the harness has taken `subprocess.Popen` away",
    "total: a fork": "the harness has taken `os.fork` away",
    "total: a global": "the harness makes the program a function",
    "total: future": "the harness makes the program a function, where the import may not stand",
}


def compared() -> list[Case]:
    """Programs for rows of LiveCodeBench: the corpus without its hacks, and each text and value as an answer."""
    ours = [case for case in cases() if case.kind != "hack" and "public_test_cases" in case.row]
    return [*ours, *_texts(), *_values()]


def _texts() -> Iterator[Case]:
    for expected in EXPECTED:
        for place, text in enumerate(TEXTS):
            end = ENDS[place % len(ENDS)]
            program = f"import sys\nsys.stdout.write({text + end!r})"
            yield Case("code", "text", f"{text + end!r} for {expected!r}", _row(expected, None), program)


def _values() -> Iterator[Case]:
    start = "from decimal import Decimal\nfrom fractions import Fraction\n"
    for expected in RETURNED:
        for value in VALUES:
            program = f"{start}class Solution:\n    def f(self, given):\n        return {value}"
            yield Case("code", "value", f"{value} for {expected}", _row(expected, "f"), program)


def _row(expected: str, name: str | None) -> dict[str, Any]:
    test = {"input": "0", "output": expected, "testtype": "functional" if name else "stdin"}
    about = {"metadata": json.dumps({"func_name": name})} if name else {}
    return {"question_content": "Solve it.", "public_test_cases": json.dumps([test]), **about, **FAST}


def official(harness: Path, asked: Sequence[Case]) -> list[bool]:
    """Whether the harness passes each program."""
    rows = [(_sample(case.row), case.solution) for case in asked]
    argv = [sys.executable, "-W", "ignore", "-m", __name__, str(harness)]
    root = Path(__file__).parents[2]
    done = subprocess.run(argv, input=json.dumps(rows), capture_output=True, text=True, check=True, cwd=root)
    return [bool(verdict) for verdict in json.loads(done.stdout)]


def table(asked: Sequence[Case], ours: Sequence[bool], theirs: Sequence[bool]) -> tuple[str, list[Case]]:
    """How many verdicts agree, the others with their reasons, and the cases that differ without one."""
    lines = ["| programs | tried | agree |", "| --- | --- | --- |"]
    for kind in dict.fromkeys(case.kind for case in asked):
        same = [one == other for case, one, other in zip(asked, ours, theirs, strict=True) if case.kind == kind]
        lines.append(f"| {KINDS[kind]} | {len(same)} | {sum(same)} |")
    differ = [(case, one) for case, one, other in zip(asked, ours, theirs, strict=True) if one != other]
    lines += ["", "| where we differ | ours | why |", "| --- | --- | --- |"]
    lines += [f"| {case.name} | {'right' if one else 'wrong'} | {REASONS.get(case.name)} |" for case, one in differ]
    return "\n".join(lines), [case for case, one in differ if not (one and case.name in REASONS)]


def _sample(row: Mapping[str, Any]) -> dict[str, str]:
    tests = json.loads(row["public_test_cases"])
    name = json.loads(row["metadata"])["func_name"] if "metadata" in row else None
    pairs = {"inputs": [test["input"] for test in tests], "outputs": [test["output"] for test in tests]}
    return {"input_output": json.dumps(pairs | {"fn_name": name})}


def _verdict(harness: Any, sample: dict[str, str], program: str) -> bool:
    """Of a child, which the program may end or change as it likes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        silent, told = os.open(os.devnull, os.O_RDWR), os._exit
        for fd in (0, 1, 2):
            os.dup2(silent, fd)
        try:
            results = harness.run_test(sample, test=program, timeout=TIMEOUT_S)
            passed = bool(results) and all(result > 0 for result in results)
        except BaseException:
            passed = False
        os.write(writer, b"1" if passed else b"0")
        told(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as stream:
        return stream.read() == b"1"


def main() -> None:
    """Loads the harness once and asks it about each program."""
    spec = importlib.util.spec_from_file_location("harness", sys.argv[1])
    assert spec is not None, "the path of the harness"
    assert spec.loader is not None, "a Python file"
    harness = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(harness)
    verdicts = [_verdict(harness, sample, program) for sample, program in json.load(sys.stdin)]
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
