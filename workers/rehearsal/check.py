"""The contract of a task family, tried on the examples that it brings along.

A family brings `examples`: tasks, each with what a policy would say to earn everything. Each example is taken through
INIT, RUN and EVAL with real sandboxes.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.errors import InvalidTask
from prorl_mq.schema.messages import Task
from prorl_mq.schema.task_schema import split
from workers.agent.journal import LogDiffers
from workers.handler import Handler, Ran, Score
from workers.rehearsal.memory_log import MemoryLog
from workers.rehearsal.stages import Rehearsal, task_of

EVAL_S = 60.0
HOSTILE = {  # what a policy may say; a scorer that raises over it turns a wrong answer into our failure
    "NUL and a character that is none": "\x00\ufffd",
    "braces": "{" * 5000 + r"\boxed{" * 200,
    "a long line": "a" * 200_000,
    "a program": "```python\nraise SystemExit(0)\n```",
    "JSON": '{"score": 1.0, "reward": 1.0}',
    "marks of all kinds": "\\ \" ' ` $ % & < > \N{FACE WITH TEARS OF JOY}\r\n\t",
}


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A task's payload, sealed fields included, and the turns of a policy that earns 1 with it."""

    payload: dict[str, Any]
    says: Sequence[str]


class BrokenPromise(Exception):
    """A promise that is not kept; the message says which, and of which example."""


class PromiseLine(NamedTuple):
    """One promise, of one example."""

    promise: str
    example: int
    fault: str | None
    seconds: float


class Checking:
    """Tries a family's promises one after the other."""

    def __init__(self, handler: Handler, rehearsal: Rehearsal) -> None:
        self._handler, self._rehearsal = handler, rehearsal

    async def lines(self) -> list[PromiseLine]:
        """Every promise for every example. Raises `BrokenPromise` for a family that has no example."""
        examples: Sequence[Example] = getattr(self._handler, "examples", ())
        if not examples:
            raise BrokenPromise(f"{type(self._handler).__name__} has no examples: give it `examples = [Example(...)]`")
        promises = (self.fits, self.oracle, self.continues, self.empty, self.hostile)
        return [
            await _line((promise.__doc__ or "").rstrip("."), number, promise, example)
            for number, example in enumerate(examples, 1)
            for promise in promises
        ]

    async def fits(self, example: Example) -> None:
        """The example fits the schema."""
        try:
            split(self._handler.schema, self._task(example))
        except InvalidTask as error:
            raise BrokenPromise(str(error)) from error

    async def oracle(self, example: Example) -> None:
        """The oracle earns 1, twice."""
        task = self._task(example)
        ran = await self._rehearsal.run(self._handler, task, example.says)
        first, again = await self._score(task, ran), await self._score(task, ran)
        if first.reward != 1.0:
            raise BrokenPromise(f"it earns {first.reward:g} ({first.note})")
        if again != first:
            raise BrokenPromise(f"it is scored {first} and then {again}")

    async def continues(self, example: Example) -> None:
        """A rollout that is cut ends the same in a new sandbox."""
        task, log = self._task(example), MemoryLog()
        whole = await self._rehearsal.run(self._handler, task, example.says, log=log)
        before = log.records[: len(log.records) - 1 & ~1]  # its last turn is sampled again
        if not before:
            return  # one turn, or a family whose rollouts start again
        rest = example.says[len(before) // 2 :]
        try:
            again = await self._rehearsal.run(
                self._handler, task, rest, log=MemoryLog(before, getattr(self._handler, "volatile", ()))
            )
        except LogDiffers as difference:
            raise BrokenPromise(f"{difference}: such a rollout starts again where its sandbox is lost") from difference
        if _ids(again) != _ids(whole):
            raise BrokenPromise("its tokens are others where it continues")

    async def empty(self, example: Example) -> None:
        """Silence earns 0."""
        score = await self._scored(example, "")
        if score.reward != 0.0:
            raise BrokenPromise(f"it earns {score.reward:g} ({score.note})")

    async def hostile(self, example: Example) -> None:
        """No answer can make the scorer fail."""
        for name, text in HOSTILE.items():
            try:
                score = await self._scored(example, text)
            except BrokenPromise as fault:
                raise BrokenPromise(f"{name}: {fault}") from fault
            except Exception as error:
                raise BrokenPromise(f"{name}: {type(error).__name__}: {error}") from error
            if score.reward >= 1.0:
                raise BrokenPromise(f"{name} earns {score.reward:g}")

    async def _scored(self, example: Example, text: str) -> Score:
        """For a policy whose every turn is this text."""
        task = self._task(example)
        return await self._score(task, await self._rehearsal.run(self._handler, task, [text] * 64))

    async def _score(self, task: Task, ran: Ran) -> Score:
        async with asyncio.timeout(EVAL_S):
            score = await self._rehearsal.score(self._handler, task, ran)
        if not math.isfinite(score.reward):
            raise BrokenPromise(f"the reward is {score.reward}")
        return score

    def _task(self, example: Example) -> Task:
        return task_of(self._handler, example.payload)


def _ids(ran: Ran) -> list[tuple[list[int], list[int]]]:
    segments = ran.trajectory.segments if ran.trajectory is not None else ()
    return [(list(each.prompt_ids), list(each.response_ids)) for each in segments]


async def _line(promise: str, number: int, keep: Callable[[Example], Awaitable[None]], example: Example) -> PromiseLine:
    began = monotonic()
    fault: str | None = None
    try:
        await keep(example)
    except BrokenPromise as broken:
        fault = str(broken)
    except TimeoutError:
        fault = f"EVAL took longer than {EVAL_S:.0f} s"
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    return PromiseLine(promise, number, fault, monotonic() - began)
