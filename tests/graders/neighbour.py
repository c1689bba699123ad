"""Scores right and wrong programs alone and beside a sandbox that spins: the rewards must be the same.

    python -m tests.graders.neighbour [PROGRAMS]

Half of them are HumanEval's own solutions and mutants of these, half use more than half of the CPU time that they may
use. The same right programs under a wall clock, as a control, lose their rewards beside the neighbour.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sandbox.isolators.bubblewrap import BubblewrapProvider
from sandbox.protocol import SandboxProvider, SandboxSpec
from tests.graders.programs_corpus import PROBLEMS
from workers.handler import Handler, Ran
from workers.handlers.code.cases import cases_of, limits_of
from workers.handlers.code.family import Code
from workers.handlers.code.running import run_tests
from workers.handlers.human_eval import HumanEval
from workers.rehearsal.stages import Rehearsal, rehearsing, task_of

CPUS = os.cpu_count() or 1
SPINNERS = min(64, 8 * CPUS)  # a sandbox has room for so many
SPIN_S = 1800  # then the neighbour ends by itself
AT_ONCE = 3
SPIN = f"for n in $(seq {SPINNERS}); do (exec timeout {SPIN_S} sh -c 'while :; do :; done') & done; wait"
BURNS = "import time\ndef f(n):\n    while time.process_time() < 1.6: pass\n    return n * {factor} + {more}\n"


class Program(NamedTuple):
    """A program for a row of a family, and what it earns."""

    family: Handler
    row: Mapping[str, Any]
    solution: str
    reward: float


def programs(count: int) -> list[Program]:
    """As many right as wrong ones, as many short ones as such that need their time."""
    short = [each for row in PROBLEMS.values() for each in _human_eval(row)]
    long = [each for number in range(count) for each in _burning(number)]
    return [*short[: count // 2], *long[: count - min(count // 2, len(short))]]


def _human_eval(row: Mapping[str, Any]) -> list[Program]:
    task, solution = {"task_id": row["task_id"], "tools": False}, row["canonical_solution"]
    return [Program(HumanEval(), task, solution, 1.0), Program(HumanEval(), task, "    return 'wombat'\n", 0.0)]


def _burning(number: int) -> list[Program]:
    row = {
        "question": "Calculate.", "time_limit": 1.0, "tools": False,
        "tests": {"fn_name": "f", "inputs": [[number]], "outputs": [number * 3 + 1]},
    }  # fmt: skip
    return [Program(Code(), row, BURNS.format(factor=3, more=more), float(more == 1)) for more in (1, 2)]


@asynccontextmanager
async def spinning(provider: SandboxProvider) -> AsyncIterator[None]:
    """Beside a sandbox with eight processes a CPU, 64 at most, that spin; nothing of it is left at the end."""
    box = await provider.create(SandboxSpec(owner="neighbour"))
    running = asyncio.create_task(box.run(["sh", "-c", SPIN], timeout_s=SPIN_S))
    try:
        while int((await box.run(["sh", "-c", "pgrep -c -x sh || :"])).stdout) < SPINNERS:
            await asyncio.sleep(0.05)
        yield
    finally:
        running.cancel()
        await box.close()


async def rewards(rehearsal: Rehearsal, chosen: Sequence[Program]) -> list[float]:
    """The reward of each."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(program: Program) -> float:
        task = task_of(program.family, program.row)
        async with turns:
            ran = Ran(trajectory=None, export={"solution": program.solution})
            return (await rehearsal.score(program.family, task, ran)).reward

    return list(await asyncio.gather(*map(one, chosen)))


async def by_wall_clock(provider: SandboxProvider, chosen: Sequence[Program]) -> list[float]:
    """The rewards of programs that burn, if their limit were of wall time and a late program were not run again.

    All run at once: of two for each processor, whatever shares the host gives, some come too late.
    """

    async def one(program: Program) -> float:
        box = await provider.create(SandboxSpec(owner="control"))
        try:
            cases, limits = cases_of(program.row), limits_of(program.row)
            result = await run_tests(box, program.solution, cases, limits, wall=1, end=time.monotonic() + 600)
            return float(result.fault is None)
        finally:
            await box.close()

    return list(await asyncio.gather(*map(one, chosen)))


async def main(count: int) -> int:
    chosen = programs(count)
    right = [each for each in chosen if isinstance(each.family, Code) and each.reward][: 2 * CPUS]
    wanted = [each.reward for each in chosen]
    with tempfile.TemporaryDirectory(prefix="neighbour-", dir="/var/tmp") as name:
        provider = BubblewrapProvider(node="neighbour", state_dir=Path(name))
        async with rehearsing(provider) as rehearsal:
            began = time.monotonic()
            alone = await rewards(rehearsal, chosen)
            between = time.monotonic()
            async with spinning(provider):
                beside = await rewards(rehearsal, chosen)
                ended = time.monotonic()
                control = await by_wall_clock(provider, right)
        await provider.aclose()
    wrong = [sum(a != b for a, b in zip(found, wanted, strict=True)) for found in (alone, beside)]
    print(f"{len(chosen)} programs: {wrong[0]} wrong rewards alone, in {between - began:.0f} s")
    print(f"beside {SPINNERS} processes that spin: {wrong[1]} wrong rewards, in {ended - between:.0f} s")
    print(f"control, by wall clock beside them: {control.count(0.0)} of {len(right)} right programs earn nothing")
    return int(bool(sum(wrong)) or 0.0 not in control)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)))
