"""Runs a solution in a sandbox, one process for each test, and gets to know nothing but what that process wrote.

The process has the input of its own test and no more. There is no checker in the sandbox to patch, to end or to read.
"""

import asyncio
import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sandbox.protocol import ProcessResult, Sandbox
from workers.handlers import plain, programs
from workers.handlers.code.cases import Case, CaseLimits
from workers.handlers.code.comparing import passed
from workers.handlers.solutions import SOLUTION

OUTPUT_BYTES = 8 << 20


class ProgramResult(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a solution. `fault` is about the first test that it failed; no later one was run."""

    passed: int
    tests: int
    fault: str | None = None
    starved: bool = False  # it was stopped while it waited for a CPU
    cut: bool = False  # EVAL's time was over


@functools.cache
def _text(file: str) -> str:
    return Path(file).read_text(encoding="utf-8")


async def run_tests(
    sandbox: Sandbox, solution: str, tests: Sequence[Case], limits: CaseLimits, *, wall: int, end: float
) -> ProgramResult:
    """One after the other, until one fails or the time for all is over. Raises `SandboxError`.

    `wall`: times the limit of CPU time. `end`: a `time.monotonic`.
    """
    await sandbox.write_file(SOLUTION, solution.encode("utf-8", "replace"))
    for place, test in enumerate(tests):
        left_s = end - time.monotonic()
        if left_s <= 0:
            return ProgramResult(passed=place, tests=len(tests), fault="its tests took too long together", cut=True)
        result = await _run(sandbox, test, limits, wall, left_s)
        fault = await asyncio.to_thread(_fault, result, test, limits)
        if fault is not None:
            said = f"test {place + 1} of {len(tests)}: {fault}"
            starved = programs.was_starved(result, limits.seconds)
            cut = programs.was_cut(result, cpu_s=limits.seconds, wall=wall)
            return ProgramResult(passed=place, tests=len(tests), fault=said, starved=starved, cut=cut)
    return ProgramResult(passed=len(tests), tests=len(tests))


async def _run(sandbox: Sandbox, test: Case, limits: CaseLimits, wall: int, left_s: float) -> ProcessResult:
    argv, stdin = ["python3", "-I", "-c", _text(str(Path(__file__).with_name("runner.py"))), SOLUTION], test.stdin
    if test.function is not None:
        argv.append(_text(plain.__file__))
        stdin = json.dumps({"function": test.function, "arguments": test.arguments})
    return await programs.run(
        sandbox,
        argv,
        cpu_s=limits.seconds,
        wall=wall,
        left_s=left_s,
        memory_bytes=limits.memory_bytes,
        stdin=stdin.encode("utf-8", "replace"),
        output_bytes=OUTPUT_BYTES,
    )


def _fault(result: ProcessResult, test: Case, limits: CaseLimits) -> str | None:
    """Says nothing of input or expectation: the note is the trainer's to show."""
    if (late := programs.time_fault(result, limits.seconds)) is not None:
        return late
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip().rpartition("\n")[2][-200:]
        return f"it ended with exit code {result.exit_code}: {said}"
    if len(result.stdout) >= OUTPUT_BYTES:
        return f"it wrote more than {OUTPUT_BYTES >> 20} MiB"
    return None if passed(test, result.stdout.decode(errors="replace")) else "wrong output"
