"""Scored programs: limits of CPU time, and whose fault it is when one does not come to its end.

A slow or crowded node must not turn a right program into a wrong one, so what counts is CPU time. Wall time is a
distant stop for programs that wait. A program that was stopped there while it waited for a CPU is run once more, and
then counts. A sandbox that fails under a program has no witness: the program is tried once more in another one, and
when that one fails too and a harmless program runs in a third, the program did it.
"""

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from prorl_mq.schema.faults import Cause
from sandbox.errors import SandboxError
from sandbox.protocol import ProcessResult, Sandbox
from workers.handler import Eval, Score

WALL = 4  # times the limit of CPU time
PATIENT_WALL = 40  # in the second run of a program that waited for a CPU
OF_THE_BUDGET = 0.8  # of EVAL's, for all that a solution runs; the rest is for us
_STARVED = 0.25  # of the wall time, ready and without a CPU
_LIMITED = 'ulimit -v "$0" && ulimit -t "$1" && shift && exec "$@"'
_HARMLESS = "import ctypes, decimal, json, typing\nprint(6 * 7)"


class NodeCrowded(Exception):
    """A node had too little time for a program. The attempt is repeated once; then the time that it took counts."""

    retryable = True
    cause = Cause.NODE


class Tried(NamedTuple):
    """A score, and whether the program was stopped while it waited for a CPU."""

    score: Score
    starved: bool = False


async def scored(context: Eval, attempt: Callable[[Sandbox, int], Awaitable[Tried]]) -> Score:
    """The score of an attempt in a fresh sandbox, with so many times the CPU time as wall time.

    Raises `SandboxError` when sandboxes fail without the program, too.
    """
    sandbox = await _checked(context)
    try:
        tried = await attempt(sandbox, WALL)
    except SandboxError:
        tried = None
    if tried is not None and not tried.starved:
        return tried.score
    sandbox = await _checked(context)
    try:
        return (await attempt(sandbox, PATIENT_WALL)).score
    except SandboxError as error:
        await _checked(context)
        return Score(reward=0.0, note=f"its sandbox failed twice, where a harmless program runs: {error}"[:300])


def end_of(context: Eval) -> float:
    """The `time.monotonic` at which scored programs have used up EVAL's budget."""
    return time.monotonic() + context.job.limits.eval_ms / 1000 * OF_THE_BUDGET


def blame_the_node(context: Eval, what: str) -> None:
    """Raises `NodeCrowded` in a first attempt on a node with more work than CPUs."""
    if context.job.attempt == 0 and os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        raise NodeCrowded(f"{what}, on a node with a load of {os.getloadavg()[0]:.0f}; it is tried once more")


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
    """Runs a program under its limits, each process of it under its own. `left_s`: of EVAL's budget."""
    limits = ["unlimited" if memory_bytes is None else str(memory_bytes >> 10), str(int(cpu_s) + 1)]
    return await sandbox.run(
        ["sh", "-c", _LIMITED, *limits, *argv],
        stdin=stdin,
        timeout_s=max(0.0, min(wall * cpu_s, left_s)),
        output_bytes=output_bytes,
    )


def time_fault(result: ProcessResult, cpu_s: float) -> str | None:
    """Says that a program took too long, if it did."""
    if result.cpu_seconds > cpu_s:
        return f"it used more than {cpu_s:g} s of CPU time"
    return f"it did not end within {result.seconds:.0f} s" if result.timed_out else None


def was_starved(result: ProcessResult) -> bool:
    """True if the node, not the program, may be why it did not end."""
    return result.timed_out and result.starved_seconds > _STARVED * result.seconds


async def _checked(context: Eval) -> Sandbox:
    """A fresh sandbox that runs a harmless program. Asked before the solution is there: later failures are its own."""
    sandbox = await context.sandbox()
    result = await sandbox.run(["python3", "-I", "-c", _HARMLESS], timeout_s=120.0)
    if result.stdout != b"42\n":
        said = result.stderr.decode(errors="replace")[-300:]
        raise SandboxError(f"the sandbox has no python3 that can run tests (exit code {result.exit_code}): {said}")
    return sandbox
