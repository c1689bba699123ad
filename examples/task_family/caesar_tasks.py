"""A task family: decode a Caesar cipher, with a shell at hand."""

from collections.abc import Sequence

from workers.agent.hermes import Message
from workers.agent.loading import policy_renderer
from workers.agent.loop import run_agent
from workers.agent.tools import select
from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score
from workers.handlers.answers import final_answer

SYSTEM = "Decode the text. Use the shell if it helps, then call finish with the plain text."


class Caesar:
    """`{cipher, shift, plain}`: EVAL alone sees the plain text."""

    data_sources: Sequence[str] = ("caesar",)
    schema = Schema(required=("cipher", "shift", "plain"), sealed=("plain",))
    needs_sandbox = True

    async def init(self, context: Init) -> Prepared:
        sandbox = await context.sandbox()
        return Prepared(sandbox=sandbox.handle)

    async def run(self, context: Run) -> Ran:
        job = context.job
        question = f"Each letter was moved {job.payload['shift']} places on: {job.payload['cipher']}"
        result = await run_agent(
            policy=context.policy,
            renderer=await policy_renderer(),
            messages=[Message(role="system", content=SYSTEM), Message(role="user", content=question)],
            tools=select(["execute_bash", "finish"]),
            sandbox=context.sandbox,
            sampling=job.sampling,
            sample=f"{job.task_id}:{job.index}",
            deadline=context.clock,
            log=context.log,
        )
        return Ran(trajectory=result.trajectory, export=result.answer, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        answer = final_answer(context.export or "").lower()
        plain = str(context.sealed["plain"]).lower()
        same = sum(ours == theirs for ours, theirs in zip(answer, plain, strict=False))
        close = same / max(len(answer), len(plain), 1)
        return Score(reward=1.0 if answer == plain else 0.0, parts={"letters": close})
