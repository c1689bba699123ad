"""The task family: a scripted agent with bash in a sandbox, whose INIT and EVAL last as long as its task says."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from bench.gpu.script import ANSWER
from workers.agent.hermes import Message
from workers.agent.loading import policy_renderer
from workers.agent.loop import run_agent
from workers.agent.tools import Tool, select
from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score

TOOLS: Final = ("execute_bash",)
SYSTEM: Final = "Use the tool to print numbers, step by step. Then say their sum."


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A task's payload. Both times are waited for, beside what INIT and EVAL do anyway."""

    number: int
    init_s: float = 0.0
    eval_s: float = 0.0


def messages(work: Work) -> Sequence[Message]:
    return [Message(role="system", content=SYSTEM), Message(role="user", content=f"This is task {work.number}. Begin.")]


def tools() -> Sequence[Tool]:
    return select(TOOLS)


class ScriptedAgent:
    """`Work` is its payload."""

    data_sources = ("scripted_agent",)
    schema = Schema(optional=tuple(Work.__struct_fields__))
    needs_sandbox = True

    async def init(self, context: Init) -> Prepared:
        box = await context.sandbox()
        await asyncio.sleep(_work(context).init_s)
        return Prepared(sandbox=box.handle)

    async def run(self, context: Run) -> Ran:
        result = await run_agent(
            policy=context.policy,
            renderer=await policy_renderer(),
            messages=messages(_work(context)),
            tools=tools(),
            sandbox=context.sandbox,
            sampling=context.job.sampling,
            sample=context.job.sample,
            deadline=context.clock,
            log=context.log,
        )
        return Ran(trajectory=result.trajectory, export={"answer": result.answer}, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        await asyncio.sleep(_work(context).eval_s)
        return Score(reward=score(context.export["answer"]))


def score(answer: str) -> float:
    return float(answer.strip().endswith(ANSWER))


def _work(context: Init | Run | Eval) -> Work:
    return msgspec.convert(dict(context.job.payload), Work)
