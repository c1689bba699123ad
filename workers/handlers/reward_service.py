"""Tasks that a reward service scores: `POST /compute_score` with what the policy said and what is right.

The service is the operator's (PRORL_REWARD_URLS). Its data sources are named here (PRORL_REWARD_SOURCES), so that rows
go over unchanged; a data source that another family scores cannot be among them.
"""

import json
import math
import os
from collections.abc import Sequence
from typing import Any

from prorl_mq.schema.codec import sendable
from prorl_mq.schema.images.rows import FIELD
from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score
from workers.handlers.asking import OPTIONS, Prompts, ask, tools_of
from workers.handlers.blame import Blamed
from workers.handlers.posting import ServiceFailed, post, scored_by, urls_in
from workers.handlers.rows import ANSWERS, QUESTIONS, ground_truth, question_of

URLS, SOURCES = "PRORL_REWARD_URLS", "PRORL_REWARD_SOURCES"
PATH = "/compute_score"
PROMPTS = Prompts(
    tools=("execute_bash", "execute_ipython_cell", "str_replace_editor", "think", "finish"),
    with_tools="Solve the task. Use the tools where they help, then call finish with the whole answer.",
    without_tools="Solve the task. Think first, then give the answer.",
)


class RewardService:
    """Rows of verl's form. The service gives a number, or `{"score": number}` with named parts beside it."""

    schema = Schema(optional=(*QUESTIONS, *OPTIONS, FIELD), sealed=ANSWERS, seals_rest=True)
    needs_sandbox = True  # unless a task's payload says `tools: false`

    def __init__(self) -> None:
        named = os.environ.get(SOURCES, "")
        self.data_sources: Sequence[str] = [name.strip() for name in named.split(",") if name.strip()] or [
            "reward_service"
        ]

    async def init(self, context: Init) -> Prepared:
        sandbox = (await context.sandbox()).handle if tools_of(context.job, PROMPTS.tools) else None
        return Prepared(carry={"question": question_of(context.job.payload)}, sandbox=sandbox)

    async def run(self, context: Run) -> Ran:
        result = await ask(context, PROMPTS, context.carry["question"])
        return Ran(trajectory=result.trajectory, export={"answer": result.answer}, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        answer = str((context.export or {}).get("answer") or "")
        if not answer.strip():
            return Score(reward=0.0, note="no answer")
        right = ground_truth(context.sealed)
        source = str(context.sealed.get("data_source") or context.job.data_source)

        async def ask_for(said: str) -> Score:
            body = {"solution_str": said, "ground_truth": right, "data_source": source}
            return score_in(await post(urls_in(URLS, "reward service"), PATH, body))

        canary = right if isinstance(right, str) else json.dumps(right)
        score = await scored_by(ask_for, answer, canary, "the reward service")
        if isinstance(score, Blamed):
            return Score(reward=0.0, note=f"the reward service cannot score the answer: {score.reason}")
        return score


def score_in(answer: Any) -> Score:
    """Raises `ServiceFailed` for what is no score."""
    told = answer
    others: dict[str, Any] = {}
    while isinstance(told, dict):  # some services answer `{"score": {"score": ...}}`
        others = told
        told = others.get("score")
    reward = None if isinstance(told, bool) else _finite(told)
    if reward is None:
        said = str(answer)[:200]
        raise ServiceFailed(f"the reward service answered {said}, which has no finite number as `score`", answered=True)
    parts = {sendable(name): value for name, told in others.items() if (value := _finite(told)) is not None}
    parts.pop("score", None)
    return Score(reward=reward, parts=parts)


def _finite(told: Any) -> float | None:
    """A number that a record can hold; JSON may bring others."""
    try:
        value = float(told) if isinstance(told, int | float) else math.nan
    except OverflowError:
        return None
    return value if math.isfinite(value) else None
