"""Hostile programs that are handed in to be scored: none of them solves anything, so none of them may earn anything."""

# ruff: noqa: E501  (acts in one piece)

import random
from collections.abc import Mapping
from typing import Any

from tests.graders.programs_corpus import TOTAL

PROBLEM = {"task_id": "HumanEval/0"}  # has_close_elements
RIGHT = "def has_close_elements(numbers, threshold):\n    numbers = sorted(numbers)\n    return any(b - a < threshold for a, b in zip(numbers, numbers[1:]))"
BODIES = (
    "import os; os._exit(0)", "import os, signal; os.kill(-1, signal.SIGKILL)", "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "import os, signal; os.kill(os.getppid(), signal.SIGSTOP); os._exit(0)", "import os; os.closerange(0, 4096)", "raise SystemExit(0)", "raise BaseException",
    "import os\nfor n in range(3, 64):\n    try: os.write(n, b'{\"value\": true}\\n')\n    except OSError: pass", "import os\nfor n in range(3, 64):\n    try: os.write(n, b'\\xff' * 9000 + b'\\n')\n    except OSError: pass",
    "import os\nfor n in range(3, 64):\n    try: os.write(n, b'[' * 60000 + b'\\n')\n    except OSError: pass", "import os\nfor n in range(3, 64):\n    try: os.write(n, b'{\"value\": [\"F\", [1, 0]]}\\n')\n    except OSError: pass",
    "import os\nfor n in range(300):\n    try:\n        if os.fork() == 0: os._exit(0)\n    except OSError: break", "import os\nif os.fork() == 0: os.setsid()\nos._exit(0)",
    "import sys; sys.stdout.write('x' * 10_000_000)", "import sys; sys.stdout.buffer.write(b'\\xff' * 100000)", "print('\\ud800')", "import ctypes; ctypes.string_at(0)",
    "x = bytearray(8 << 30)", "import sys; sys.setrecursionlimit(10**8)\nf = lambda: f()\nf()", "open('/workspace/solution.py', 'w').write('x')", "import os; os.execvp('true', ['true'])",
    "import json; json.dumps = lambda *a, **k: 'null'", "import builtins; builtins.print = builtins.len = None", "import sys; sys.modules.clear()", "return_me = 1 / 0",
    "import shutil; shutil.rmtree('/workspace', ignore_errors=True); shutil.rmtree('/tmp', ignore_errors=True)", "import os; os.chmod('/workspace', 0)", "import resource; resource.setrlimit(resource.RLIMIT_AS, (1, 1))",
    "import signal; signal.alarm(1)", "import threading; threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()",
    "\x00", "(" * 3000, "def has_close_elements(", "\ud800", "'" * 3, "import gc\nfor each in gc.get_objects():\n    if type(each) is dict: each.pop('pack', None)",
    "import os\ntry:\n    while True: os.open('/dev/null', 0)\nexcept OSError: pass", "import faulthandler, sys; faulthandler._sigsegv()", "import os; os.abort()", "import os; os.nice(19)",
)  # fmt: skip
CALLS = (
    "return type('X', (), {'__eq__': lambda *a: True})()", "return float('nan')", "return None", "while True: return [[]] * 100000", "raise SystemExit(0)", "import os; os._exit(0)",
    "return type('Y', (int,), {'__eq__': lambda *a: True, '__hash__': None})(1)", "return '\\ud800'", "return 10 ** 100000", "x = []; x.append(x); return x", "return lambda: True", "raise KeyboardInterrupt",
    "import sys; sys.stdout.write('x' * 100000)", "return {'value': True}", "return b'\\xff'", "return NotImplemented", "return ...", "yield True", "raise type('E', (Exception,), {'__str__': lambda s: 7})()",
)  # fmt: skip
WAITS = (
    "import time; time.sleep(99)",
    "while True: pass",
    "import os, time\nfor n in range(20):\n    if os.fork() == 0:\n        while True: pass\ntime.sleep(99)",
    "import sys; sys.stdin.read(); input()",
)

LAST_WORDS = (
    "```" + " " * 300_000 + "x", "```python" + " " * 300_000, "```\n" * 60_000, "~~~" * 100_000, "`" * 300_000, "```python\n" * 30_000, "<answer>" * 30_000,
    "\\boxed{1}," * 30_000, "\\boxed{" * 30_000, "{" * 300_000, "\x00" * 1000, "\r" * 100_000, "```python\nprint(1)\n```\n" * 5_000, "```text\n```", "<think>" * 10_000,
)  # fmt: skip


def solution(chance: random.Random) -> str:
    """A body before the function, or in it."""
    head = chance.choice(BODIES) if chance.random() < 0.7 else ""
    body = chance.choice(CALLS).replace("\n", "\n    ")
    return f"{head}\ndef has_close_elements(*given):\n    {body}\n" if chance.random() < 0.8 else head or "pass"


def program(chance: random.Random) -> str:
    """For a test that reads standard input, with a limit of a second: it may wait, too."""
    return chance.choice(WAITS) if chance.random() < 0.02 else chance.choice(BODIES)


def last_words(chance: random.Random) -> str:
    """A final message that solves nothing, and takes long to search if that is done badly."""
    return chance.choice(LAST_WORDS)


def row_of(family: str) -> Mapping[str, Any]:
    """The row that it is handed in for. No tools: the acts come another way."""
    return PROBLEM if family == "human_eval" else {**TOTAL, "tools": True}
