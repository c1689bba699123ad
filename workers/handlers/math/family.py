r"""Mathematics: the answer stands in `\boxed{}`, and math-verify says whether it equals the right one.

Rows of DeepScaleR, DAPO-17k and GSM8K as trainers have them (`workers.handlers.rows`).
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from prorl_mq.schema.images.rows import FIELD
from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score
from workers.handlers.answers import MAX_ANSWER_CHARS as MAX_TEXT_CHARS
from workers.handlers.answers import boxed, last_boxed
from workers.handlers.asking import OPTIONS, Prompts, ask, tools_of
from workers.handlers.blame import Blamed, blaming, reply_of
from workers.handlers.clocks import AskTime, EvalClock
from workers.handlers.forks import ForkLimits, Forks
from workers.handlers.math.checker import MAX_ANSWER_CHARS, MathVerdict, Question
from workers.handlers.math.reading import same
from workers.handlers.rows import ANSWERS, QUESTIONS, BadRow, given_truth, parsed, question_of

_PERCENT = re.compile(r"percent|%", re.IGNORECASE)
PROMPTS = Prompts(
    tools=("execute_ipython_cell", "think", "finish"),
    with_tools="Solve the problem. Use the tools where they help, then call finish. Put the final answer, and nothing "
    "else, into \\boxed{}.",
    without_tools="Solve the problem step by step. Put the final answer, and nothing else, into \\boxed{}.",
)


class Math:
    """`{prompt, reward_model: {ground_truth}}`, or `{question, answer}`."""

    data_sources: Sequence[str] = ("deepscaler", "math", "math_dapo", "openai/gsm8k", "gsm8k")
    schema = Schema(optional=(*QUESTIONS, *OPTIONS, FIELD), sealed=ANSWERS, seals_rest=True)
    needs_sandbox = True  # unless a task's payload says `tools: false`
    needs = ("math_verify",)

    def __init__(self) -> None:
        self._checker = Forks("workers.handlers.math.checker", ForkLimits(cpu_s=10))

    async def init(self, context: Init) -> Prepared:
        sandbox = (await context.sandbox()).handle if tools_of(context.job, PROMPTS.tools) else None
        return Prepared(carry={"question": question_of(context.job.payload)}, sandbox=sandbox)

    async def run(self, context: Run) -> Ran:
        result = await ask(context, PROMPTS, context.carry["question"])
        return Ran(trajectory=result.trajectory, export={"answer": result.answer}, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        clock, right = EvalClock.of(context), accepted(context.sealed)
        answer = boxed(str((context.export or {}).get("answer") or "").strip()[-MAX_TEXT_CHARS:])
        if answer is None or not answer.strip():
            return Score(reward=0.0, note="no answer in \\boxed{}")
        if len(answer) > MAX_ANSWER_CHARS:
            return Score(reward=0.0, note=f"the answer has more than {MAX_ANSWER_CHARS} characters")
        if any(same(answer, each) for each in right):
            return Score(reward=1.0)
        percent = _PERCENT.search(question_of(context.job.payload)) is not None
        said = Question(answer=answer, accepted=right, percent=percent)
        canary = Question(answer=right[0], accepted=right)
        verdict = await blaming(self._verdict, said, [canary], "math-verify", clock)
        if isinstance(verdict, Blamed):
            return Score(reward=0.0, note=f"the answer cannot be read: {verdict.reason}")
        note = "only equal text could be right" if verdict.unread else verdict.note
        return Score(reward=float(verdict.right), note=None if verdict.right else note)

    async def aclose(self) -> None:
        """Ends the process of math-verify."""
        await asyncio.to_thread(self._checker.close)

    async def _verdict(self, question: Question, given: AskTime) -> MathVerdict:
        return await reply_of(self._checker, MathVerdict, question, given)


def accepted(sealed: Mapping[str, Any]) -> list[str]:
    """The right answers of a row: one, or a list of which any will do. Raises `BadRow`.

    `[0, 1]` as text is one answer, an interval or a vector: in a list of several that is text, each stands in quotes.
    """
    given = given_truth(sealed)
    truth = parsed(given)
    if isinstance(truth, list) and isinstance(given, str) and truth[1:] and not all(isinstance(x, str) for x in truth):
        truth = given
    if isinstance(truth, Mapping):  # {"answer": ...}, {"ground_truth": ...}
        truth = truth.get("ground_truth", truth.get("answer", ""))
    answers = [_bare(str(each)) for each in (truth if isinstance(truth, list) else [truth])]
    if not any(answers):
        raise BadRow("the row's answer is empty")
    return [answer for answer in answers if answer]


def _bare(answer: str) -> str:
    """Without what data sets put around it: GSM8K's `#### 42` behind a solution, MATH's box within one."""
    answer = answer.rpartition("####")[2]
    boxed = last_boxed(answer)
    return (answer if boxed is None else boxed).strip()
