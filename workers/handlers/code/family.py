"""Programming problems: the solution is run against hidden tests in a fresh sandbox, and must pass them all."""

import asyncio
from collections.abc import Sequence

from sandbox.protocol import Sandbox
from workers.handler import Eval, Init, Prepared, Ran, Reference, Run, Schema, Score
from workers.handlers import programs, solutions
from workers.handlers.asking import OPTIONS, Prompts, ask, tools_of
from workers.handlers.clocks import EvalClock
from workers.handlers.code.cases import cases_of, limits_of
from workers.handlers.code.running import run_tests
from workers.handlers.rows import QUESTIONS, question_of

PROMPTS = Prompts(
    tools=("execute_bash", "str_replace_editor", "execute_ipython_cell", "think", "finish"),
    with_tools="Solve the programming problem in Python. Use the tools to try your program out. Hand in the whole "
    "program: in a ```python block of your final message, or in the file /workspace/solution.py.",
    without_tools="Solve the programming problem in Python. Answer with the whole program in one ```python block.",
)
_REFERENCE = {"tests": {"inputs": ["1 2\n", "40 2\n"], "outputs": ["3\n", "42\n"]}}
LIMITS = ("time_limit", "memory_limit")


class Code:
    """`{prompt, reward_model: {ground_truth: tests}}`, or a row of LiveCodeBench; `workers.handlers.code.cases`."""

    data_sources: Sequence[str] = (
        "deepcoder", "codecontests", "apps", "taco", "codeforces", "livecodebench", "primeintellect", "lcbv5",
        "rStar",
    )  # fmt: skip
    schema = Schema(optional=(*QUESTIONS, *OPTIONS, *LIMITS, "starter_code"), seals_rest=True)
    needs_sandbox = True
    references = tuple(
        Reference(payload={}, sealed=_REFERENCE, export={"solution": solution}, reward=reward)
        for solution, reward in (("print(sum(map(int, input().split())))", 1.0), ("print(input())", 0.0))
    )

    async def init(self, context: Init) -> Prepared:
        question = question_of(context.job.payload)
        if starter := str(context.job.payload.get("starter_code") or "").strip():
            question += f"\n\nYour program begins with:\n```python\n{starter}\n```"
        sandbox = (await context.sandbox()).handle if tools_of(context.job, PROMPTS.tools) else None
        return Prepared(carry={"question": question}, sandbox=sandbox)

    async def run(self, context: Run) -> Ran:
        result = await ask(context, PROMPTS, context.carry["question"])
        solution = await solutions.handed_in(result, context.sandbox)
        return Ran(trajectory=result.trajectory, export={"solution": solution}, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        tests = await asyncio.to_thread(cases_of, context.sealed)
        solution = (context.export or {}).get("solution")
        if fault := solutions.fault_of(solution):
            return Score(reward=0.0, note=fault)
        limits = limits_of(context.job.payload)
        clock = EvalClock.of(context)

        async def attempt(sandbox: Sandbox, wall: int) -> programs.Tried:
            result = await run_tests(sandbox, str(solution), tests, limits, wall=wall, end=clock.end)
            parts = {"passed": float(result.passed), "tests": float(result.tests)}
            score = Score(reward=float(result.fault is None), parts=parts, note=result.fault)
            return programs.Tried(score, starved=result.starved, cut=result.cut)

        return await programs.scored(context, clock, attempt, cpu_s=len(tests) * limits.seconds)
