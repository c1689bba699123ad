r"""Questions of science with a short answer in `\boxed{}`: exact rules first, then a judge.

Of `llm_judge` no box is asked for: the answer is what `final_answer` finds.

Tools may come from MCP servers (`workers.agent.mcp_tools`), which a task names in its payload.
"""

import os
from collections.abc import Sequence

import msgspec

from prorl_mq.schema.images.rows import FIELD
from workers.agent.mcp_tools import ServerSpec, mcp_tools, servers_of
from workers.handler import Eval, Init, JobView, Prepared, Ran, Run, Schema, Score
from workers.handlers.answers import MAX_ANSWER_CHARS, boxed, final_answer
from workers.handlers.asking import OPTIONS, Prompts, ask, tools_of
from workers.handlers.blame import Blamed
from workers.handlers.math.family import accepted
from workers.handlers.posting import scored_by
from workers.handlers.rows import ANSWERS, QUESTIONS, fitting, question_of
from workers.handlers.stem.judge import MAX_ANSWER_CHARS as MAX_JUDGED_CHARS
from workers.handlers.stem.judge import configured, judge, pool_named
from workers.handlers.stem.rules import decided, exact

PROMPTS = Prompts(
    tools=("execute_ipython_cell", "think", "finish"),
    with_tools="Answer the question. Use the tools where they help, then call finish. Put the final answer, and "
    "nothing else, into \\boxed{}.",
    without_tools="Answer the question. Think first. Put the final answer, and nothing else, into \\boxed{}.",
)


UNBOXED = "llm_judge"
_ASKED = Prompts(
    tools=PROMPTS.tools,
    with_tools="Answer the question. Use the tools where they help, then call finish with the answer.",
    without_tools="Answer the question. Think first, then write the answer between <answer> and </answer>.",
)


class ToolServers(msgspec.Struct, frozen=True, kw_only=True):
    """MCP servers that a row names."""

    mcp: Sequence[str | ServerSpec] | None = None


class Stem:
    """`{prompt, reward_model: {ground_truth}, mcp?}`."""

    data_sources: Sequence[str] = ("stem", UNBOXED)
    schema = Schema(optional=(*QUESTIONS, *OPTIONS, FIELD, "mcp"), sealed=ANSWERS, seals_rest=True)
    needs_sandbox = True  # unless a task's payload says `tools: false`

    @property
    def asks(self) -> Sequence[str]:
        """The pool that is the judge, where one is."""
        pool = pool_named(os.environ)
        return [pool] if pool else []

    async def init(self, context: Init) -> Prepared:
        wanted = tools_of(context.job, PROMPTS.tools) or any(server.command for server in _servers(context.job))
        sandbox = (await context.sandbox()).handle if wanted else None
        return Prepared(carry={"question": question_of(context.job.payload)}, sandbox=sandbox)

    async def run(self, context: Run) -> Ran:
        async with mcp_tools(_servers(context.job), context.sandbox) as more:
            prompts = _ASKED if context.job.data_source == UNBOXED else PROMPTS
            result = await ask(context, prompts, context.carry["question"], more=more)
        return Ran(trajectory=result.trajectory, export={"answer": result.answer}, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        right = accepted(context.sealed)
        if not exact(right):
            configured()  # whatever was said: an answer must not choose between a reward and none
        said = str((context.export or {}).get("answer") or "").strip()[-MAX_ANSWER_CHARS:]
        unboxed = context.job.data_source == UNBOXED
        answer = final_answer(said) if unboxed else boxed(said)
        if answer is None or not answer.strip():
            return Score(reward=0.0, note="no answer" if unboxed else "no answer in \\boxed{}")
        if len(answer) > MAX_JUDGED_CHARS:
            return Score(reward=0.0, note=f"the answer has more than {MAX_JUDGED_CHARS} characters")
        by_rule = decided(answer, right)
        if by_rule is not None:
            return Score(reward=float(by_rule), note="by rule")
        question = question_of(context.job.payload)
        judgement = await scored_by(lambda text: judge(question, right, text, context), answer, right[0], "the judge")
        if isinstance(judgement, Blamed):
            return Score(reward=0.0, note=f"the judge cannot read the answer: {judgement.reason}")
        parts = {"judge_yes": float(sum(judgement.votes)), "judge_votes": float(len(judgement.votes))}
        reward = float(judgement.right)
        return Score(reward=reward, parts=parts, note=judgement.note, evidence=judgement.evidence)


def _servers(job: JobView) -> list[ServerSpec]:
    """Raises `BadRow`."""
    return servers_of(fitting({"mcp": job.payload.get("mcp")}, ToolServers).mcp or ())
