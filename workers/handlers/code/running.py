"""Runs a solution in a sandbox, one process for each test, and gets to know nothing but what that process wrote.

The process has the input of its own test and no more. There is no checker in the sandbox to patch, to end or to read.
"""

import json
from collections.abc import Sequence

import msgspec

from sandbox.errors import SandboxError
from sandbox.protocol import ProcessResult, Sandbox
from workers.handlers.code.cases import Case, CaseLimits
from workers.handlers.code.comparing import passed
from workers.handlers.solutions import SOLUTION

OUTPUT_BYTES = 8 << 20
LIMITED = 'ulimit -v "$0" && ulimit -t "$1" && shift && exec "$@"'
CALL = r"""
import json, os, sys
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
given = json.load(sys.stdin)
space = {"__name__": "solution"}
exec("from typing import *\nfrom collections import *\nfrom heapq import *\nfrom bisect import *\n"
     "from itertools import *\nfrom functools import *\nimport collections, heapq, bisect, itertools, functools, math, "
     "re, string, operator, random, sys\ninf = math.inf", space)
with open(given["solution"]) as source:
    exec(compile(source.read(), "solution.py", "exec"), space)
name = given["function"]
function = space[name] if name in space else getattr(space["Solution"](), name)
value = function(*given["arguments"])
plain = lambda other: sorted(other) if isinstance(other, (set, frozenset)) else list(other)
out.write(json.dumps(value, default=plain))
out.close()
"""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How far a solution came. `fault` is about the first test that it failed; no later one was run."""

    passed: int
    tests: int
    fault: str | None = None


async def run_tests(sandbox: Sandbox, solution: str, tests: Sequence[Case], limits: CaseLimits) -> Result:
    """One after the other, until one fails. Raises `SandboxError` when the sandbox cannot run Python."""
    await _check(sandbox, limits)  # before the solution is there: later exit codes are the solution's own
    await sandbox.write_file(SOLUTION, solution.encode("utf-8", "replace"))
    for place, test in enumerate(tests):
        result = await _run(sandbox, test, limits)
        fault = _fault(result, test, limits)
        if fault is not None:
            return Result(passed=place, tests=len(tests), fault=f"test {place + 1} of {len(tests)}: {fault}")
    return Result(passed=len(tests), tests=len(tests))


async def _check(sandbox: Sandbox, limits: CaseLimits) -> None:
    result = await sandbox.run(_limited(limits, "python3", "-I", "-c", "print(6 * 7)"), timeout_s=60.0)
    if result.stdout != b"42\n":
        said = result.stderr.decode(errors="replace")[-300:]
        raise SandboxError(f"the sandbox has no python3 that can run tests (exit code {result.exit_code}): {said}")


async def _run(sandbox: Sandbox, test: Case, limits: CaseLimits) -> ProcessResult:
    argv, stdin = ["python3", "-I", SOLUTION], test.stdin
    if test.function is not None:
        argv = ["python3", "-I", "-c", CALL]
        stdin = json.dumps({"solution": SOLUTION, "function": test.function, "arguments": test.arguments})
    return await sandbox.run(
        _limited(limits, *argv),
        stdin=stdin.encode("utf-8", "replace"),
        timeout_s=limits.seconds,
        output_bytes=OUTPUT_BYTES,
    )


def _limited(limits: CaseLimits, *argv: str) -> list[str]:
    return ["sh", "-c", LIMITED, str(limits.memory_bytes >> 10), str(int(limits.seconds) + 1), *argv]


def _fault(result: ProcessResult, test: Case, limits: CaseLimits) -> str | None:
    """Says nothing of input or expectation: the note is the trainer's to show."""
    if result.timed_out:
        return f"it took longer than {limits.seconds:g} s"
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip().rpartition("\n")[2][-200:]
        return f"it ended with exit code {result.exit_code}: {said}"
    if len(result.stdout) >= OUTPUT_BYTES:
        return f"it wrote more than {OUTPUT_BYTES >> 20} MiB"
    return None if passed(test, result.stdout.decode(errors="replace")) else "wrong output"
