"""Rows of reasoning-gym that bring their entry, as ProRL Agent's clients send them: scored by the data set's scorer."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score
from workers.handlers.answers import final_answer
from workers.handlers.asking import OPTIONS, ask, tools_of
from workers.handlers.clocks import EvalClock
from workers.handlers.gym_client import GymClient, GymEntry, ScoringFailed
from workers.handlers.reasoning_gym import PROMPTS
from workers.handlers.rows import ANSWERS, QUESTIONS, BadRow, fitting, parsed, question_of


class GymEntries:
    """`{prompt, reward_model: {entry, reasoning_task}}`; the two may stand in `extra_info.reward_model` instead."""

    data_sources: Sequence[str] = ("reasoning_gym_entry",)
    schema = Schema(optional=(*QUESTIONS, *OPTIONS), sealed=ANSWERS, seals_rest=True)
    needs_sandbox = True  # unless a task's payload says `tools: false`
    needs = ("reasoning_gym",)

    def __init__(self) -> None:
        self._gym = GymClient()

    async def init(self, context: Init) -> Prepared:
        sandbox = (await context.sandbox()).handle if tools_of(context.job, PROMPTS.tools) else None
        return Prepared(carry={"question": question_of(context.job.payload)}, sandbox=sandbox)

    async def run(self, context: Run) -> Ran:
        result = await ask(context, PROMPTS, context.carry["question"])
        return Ran(trajectory=result.trajectory, export={"answer": result.answer}, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        clock, entry = EvalClock.of(context), entry_of(context.sealed)
        answer = final_answer((context.export or {}).get("answer", ""))
        if not answer:
            return Score(reward=0.0, note="no answer")
        try:
            return Score(reward=await self._gym.score(entry, answer, clock))
        except ScoringFailed as failure:
            return Score(reward=0.0, note=f"the scorer of {entry.name} gave no score: {failure}")

    async def aclose(self) -> None:
        """Ends the process of reasoning-gym."""
        await asyncio.to_thread(self._gym.close)


def entry_of(sealed: Mapping[str, Any]) -> GymEntry:
    """Raises `BadRow`."""
    more = parsed(sealed.get("extra_info"))
    inside = more.get("reward_model") if isinstance(more, Mapping) else None
    for model in map(parsed, (sealed.get("reward_model"), inside)):
        if isinstance(model, Mapping) and {"entry", "reasoning_task"} <= model.keys():
            return fitting({"name": model["reasoning_task"], "entry": parsed(model["entry"])}, GymEntry)
    raise BadRow("the row has no entry: neither reward_model nor extra_info.reward_model has entry and reasoning_task")
