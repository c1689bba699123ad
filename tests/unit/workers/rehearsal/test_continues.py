"""The promise that a rollout which is cut ends the same in a new sandbox."""

from collections.abc import Callable, Sequence

import pytest

from prorl_mq.schema.task_schema import Schema
from workers.agent.hermes import Message
from workers.agent.loading import policy_renderer
from workers.agent.loop import run_agent
from workers.agent.tools import Arguments, Resumes, Tool, ToolAnswer, ToolContext
from workers.handler import Eval, Init, Prepared, Ran, Run, Score
from workers.rehearsal.check import BrokenPromise, Checking, Example
from workers.rehearsal.stages import rehearsing

pytestmark = pytest.mark.anyio
LOOK = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
EXAMPLE = Example(payload={}, says=[LOOK, LOOK, "Done."])


class Look(Arguments, frozen=True, kw_only=True):
    """Looks."""


class Looking:
    """A family whose agent looks at something twice."""

    data_sources: Sequence[str] = ("looking",)
    schema = Schema()
    needs_sandbox = False
    volatile: Sequence[str] = ()

    def __init__(self, seen: Callable[[], str], resumes: Resumes = Resumes.KEPT) -> None:
        self.calls = 0

        async def look(_: ToolContext, __: Look) -> ToolAnswer:
            self.calls += 1
            return ToolAnswer(text=seen())

        self.tool = Tool(name="look", description="Looks.", arguments=Look, run=look, resumes=resumes)

    async def init(self, _: Init) -> Prepared:
        return Prepared()

    async def run(self, context: Run) -> Ran:
        result = await run_agent(
            policy=context.policy, renderer=await policy_renderer(), messages=[Message(role="user", content="Look.")],
            tools=[self.tool], sandbox=None, sampling=context.job.sampling, sample="x", deadline=context.clock,
            log=context.log,
        )  # fmt: skip
        return Ran(trajectory=result.trajectory)

    async def eval(self, _: Eval) -> Score:
        return Score(reward=0.0)


async def kept(family: Looking) -> None:
    async with rehearsing(None) as rehearsal:
        await Checking(family, rehearsal).continues(EXAMPLE)


async def test_it_is_kept_where_calls_answer_the_same_again() -> None:
    family = Looking(lambda: "a wall")
    await kept(family)
    assert family.calls == 4, "both calls are made again"


async def test_a_call_that_answers_otherwise_is_named() -> None:
    numbers = iter(range(9))
    with pytest.raises(
        BrokenPromise, match=r"look in turn 0 answers otherwise .* 'wall 0' was logged, now .* 'wall 2'"
    ):
        await kept(Looking(lambda: f"wall {next(numbers)}"))


async def test_what_its_family_declares_volatile_is_no_other_answer() -> None:
    """The test above is its control."""
    numbers = iter(range(9))
    family = Looking(lambda: f"wall {next(numbers)}")
    family.volatile = (r"wall \d",)
    await kept(family)
    assert family.calls == 4


async def test_a_family_whose_rollouts_start_again_promises_nothing() -> None:
    numbers = iter(range(9))
    await kept(Looking(lambda: f"wall {next(numbers)}", Resumes.NEVER))
