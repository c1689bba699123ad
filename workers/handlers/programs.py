"""Scored programs: limits of CPU time, and whose fault it is when one does not come to its end.

`workers.handlers.clocks` has the rule of time. A sandbox that fails under a program has no witness: the program is
tried once more in another one, and when that one fails too and a harmless program runs in a third, the program did it.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from sandbox.errors import SandboxError
from sandbox.protocol import ProcessResult, Sandbox
from workers.handler import Eval, Score
from workers.handlers import clocks
from workers.handlers.clocks import PATIENT_WALL, WALL, EvalClock

_LIMITED = 'ulimit -v "$0" && ulimit -t "$1" && shift && exec "$@"'
_HARMLESS = "import ctypes, decimal, json, typing\nprint(6 * 7)"


class Tried(NamedTuple):
    """A score, and what stopped the program, if something did."""

    score: Score
    starved: bool = False  # while it waited for a CPU
    cut: bool = False  # by EVAL's end, before its own limits did


async def scored(
    context: Eval, clock: EvalClock, attempt: Callable[[Sandbox, int], Awaitable[Tried]], *, cpu_s: float
) -> Score:
    """The score of an attempt in a fresh sandbox, with so many times the CPU time as wall time.

    `cpu_s`: limit of all programs of an attempt together. Raises `SandboxError` when sandboxes fail without the
    program, too, and `NodeCrowded` where EVAL's time was over before the program's.
    """
    had_s = 0.0  # in sandboxes that it ended, too
    tried: Tried | SandboxError
    for wall in (WALL, PATIENT_WALL):
        sandbox = await _checked(context)
        began = time.monotonic()
        try:
            tried = await attempt(sandbox, wall)
        except SandboxError as error:
            tried = error
        had_s += time.monotonic() - began
        if isinstance(tried, Tried) and tried.cut:
            clock.cut(str(tried.score.note), had_s=had_s, own_s=WALL * cpu_s, starved=tried.starved)
            return tried.score
        if isinstance(tried, Tried) and not tried.starved:
            return tried.score
    if isinstance(tried, Tried):
        return tried.score
    await _checked(context)
    return Score(reward=0.0, note=f"its sandbox failed twice, where a harmless program runs: {tried}"[:300])


async def run(
    sandbox: Sandbox,
    argv: Sequence[str],
    *,
    cpu_s: float,
    wall: int,
    left_s: float,
    memory_bytes: int | None = None,
    stdin: bytes = b"",
    output_bytes: int | None = None,
) -> ProcessResult:
    """Runs a program under its limits, each process of it under its own. `left_s`: of EVAL's budget.

    Nothing of it is left for the next one, and the CPU time of what left its session is counted, too.
    """
    if left_s <= 0:
        return ProcessResult(exit_code=137, stdout=b"", stderr=b"", timed_out=True)
    limits = ["unlimited" if memory_bytes is None else str(memory_bytes >> 10), str(int(cpu_s) + 1)]
    return await sandbox.run(
        ["sh", "-c", _LIMITED, *limits, *argv],
        stdin=stdin,
        timeout_s=min(wall * cpu_s, left_s),
        output_bytes=output_bytes,
        alone=True,
    )


def time_fault(result: ProcessResult, cpu_s: float) -> str | None:
    """Says that a program took too long, if it did."""
    if result.cpu_seconds > cpu_s:
        return f"it used more than {cpu_s:g} s of CPU time"
    return f"it did not end within {result.seconds:.0f} s" if result.timed_out else None


def was_starved(result: ProcessResult, cpu_s: float) -> bool:
    """True if the node, not the program, may be why it did not end; not if its own processes took the time."""
    late = result.timed_out and result.cpu_seconds <= cpu_s
    return late and clocks.was_starved(waited_s=result.starved_seconds, wall_s=result.seconds)


def was_cut(result: ProcessResult, *, cpu_s: float, wall: int) -> bool:
    """True if EVAL's end stopped it, and its own limits would have let it run on."""
    return result.timed_out and result.cpu_seconds <= cpu_s and result.seconds < wall * cpu_s


async def _checked(context: Eval) -> Sandbox:
    """A fresh sandbox that runs a harmless program. Asked before the solution is there: later failures are its own."""
    sandbox = await context.sandbox()
    result = await sandbox.run(["python3", "-I", "-c", _HARMLESS], timeout_s=120.0)
    if result.stdout != b"42\n":
        said = result.stderr.decode(errors="replace")[-300:]
        raise SandboxError(f"the sandbox has no python3 that can run tests (exit code {result.exit_code}): {said}")
    return sandbox
