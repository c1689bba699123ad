"""Procedural reasoning tasks of the package reasoning-gym, with or without tools.

The payload names a data set and a place in it; question and reference answer follow from them, so that nothing
secret travels with a job.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from workers.handler import Eval, Init, Prepared, Ran, Run, Schema, Score
from workers.handlers.answers import final_answer
from workers.handlers.asking import OPTIONS, Prompts, ask, tools_of
from workers.handlers.clocks import EvalClock
from workers.handlers.gym_client import DatasetPlace, GymClient, ScoringFailed
from workers.handlers.rows import fitting

PROMPTS = Prompts(
    tools=("execute_bash", "execute_ipython_cell", "think", "finish"),
    with_tools="Solve the task. Use the tools where they help, then call finish with the answer and nothing else.",
    without_tools="Solve the task. Think first, then write the answer between <answer> and </answer>.",
)
_REMEMBERED = 4096  # questions


class ReasoningGym:
    """Every data set of reasoning-gym: `{name, seed, size?, index?, config?, tools?, system?, examples?}`."""

    data_sources: Sequence[str] = ("reasoning_gym",)
    schema = Schema(required=("name", "seed"), optional=("size", "index", "config", *OPTIONS))
    needs_sandbox = True  # unless a task's payload says `tools: false`
    needs = ("reasoning_gym",)

    def __init__(self) -> None:
        self._gym = GymClient()
        self._questions: dict[bytes, str] = {}
        self._making: dict[bytes, asyncio.Lock] = {}

    async def init(self, context: Init) -> Prepared:
        question = await self._question(_place(context.job.payload))
        sandbox = (await context.sandbox()).handle if tools_of(context.job, PROMPTS.tools) else None
        return Prepared(carry={"question": question}, sandbox=sandbox)

    async def run(self, context: Run) -> Ran:
        result = await ask(context, PROMPTS, context.carry["question"])
        return Ran(trajectory=result.trajectory, export={"answer": result.answer}, agent_error=result.agent_error)

    async def eval(self, context: Eval) -> Score:
        clock, place = EvalClock.of(context), _place(context.job.payload)
        answer = final_answer((context.export or {}).get("answer", ""))
        if not answer:
            return Score(reward=0.0, note="no answer")
        try:
            return Score(reward=await self._gym.score(place, answer, clock))
        except ScoringFailed as failure:
            return Score(reward=0.0, note=f"the scorer of {place.name} gave no score: {failure}")

    async def aclose(self) -> None:
        """Ends the process of reasoning-gym."""
        await asyncio.to_thread(self._gym.close)

    async def _question(self, place: DatasetPlace) -> str:
        """Made once for all jobs of a task that come here, however close together."""
        key = msgspec.json.encode(place, order="deterministic")
        if key in self._questions:
            return self._questions[key]
        lock = self._making.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                if key not in self._questions:
                    question = await self._gym.question(place)
                    while len(self._questions) >= _REMEMBERED:
                        del self._questions[next(iter(self._questions))]
                    self._questions[key] = question
                return self._questions[key]
        finally:
            if not lock.locked():
                self._making.pop(key, None)


def _place(payload: Mapping[str, Any]) -> DatasetPlace:
    return fitting(dict(payload), DatasetPlace)
