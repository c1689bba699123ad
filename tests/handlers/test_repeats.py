"""Flaky families are found by repeats in real sandboxes: time, order and scores that differ are named."""

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from prorl_mq.schema.task_schema import Schema
from sandbox.protocol import SandboxProvider
from workers.handler import Eval, Init, Prepared, Ran, Run, Score
from workers.handlers.asking import Prompts, ask
from workers.rehearsal.check import Example
from workers.rehearsal.repeats import Repeated, repeated, told
from workers.rehearsal.stages import rehearsing

pytestmark = pytest.mark.anyio
PROMPTS = Prompts(tools=("execute_bash",), with_tools="Work.", without_tools="Work.")
SHUFFLED = "python3 -c 'import random, string; print(*random.sample(string.ascii_letters, 52))'"


def does(*commands: str) -> Sequence[str]:
    calls = [
        f'<tool_call>\n{{"name": "execute_bash", "arguments": {{"command": "{command}"}}}}\n</tool_call>'
        for command in commands
    ]
    return [*calls, "Done."]


class Shell:
    """A family whose agent runs commands, and whose files are the artefact."""

    data_sources: Sequence[str] = ("shell",)
    schema = Schema()
    needs_sandbox = True

    def __init__(
        self,
        *commands: str,
        question: Callable[[], str] = lambda: "Work.",
        reward: Callable[[], float] = lambda: 1.0,
        volatile: Sequence[str] = (),
    ) -> None:
        self.examples = (Example(payload={}, says=does(*commands)),)
        self.question, self.reward, self.volatile = question, reward, volatile

    async def init(self, context: Init) -> Prepared:
        return Prepared(carry=self.question(), sandbox=(await context.sandbox()).handle)

    async def run(self, context: Run) -> Ran:
        result = await ask(context, PROMPTS, context.carry)
        assert context.sandbox is not None
        made = await context.sandbox.run(["sh", "-c", "cat /workspace/made 2>/dev/null"])
        return Ran(trajectory=result.trajectory, export={"made": made.stdout})

    async def eval(self, _: Eval) -> Score:
        return Score(reward=self.reward())


async def once(provider: SandboxProvider, family: Shell, times: int = 2) -> Repeated:
    async with rehearsing(provider) as rehearsal:
        [found] = await repeated(family, rehearsal, times)
    return found


async def test_a_family_that_is_the_same_each_time_is_not_flaky(provider: SandboxProvider) -> None:
    """The time of day differs too, and is known to."""
    found = await once(provider, Shell("date; mktemp; echo 1 >/workspace/made", "cat /workspace/made"), times=3)
    assert (found.flaky, found.runs, found.worlds, found.scores) == (False, 3, 0, [1.0])
    assert "same" in told([found])


@pytest.mark.parametrize(
    ("family", "what"),
    [
        (lambda: Shell("true", "date +%s%N"), "execute_bash"),
        (lambda: Shell("true", SHUFFLED.replace("'", "\\u0027")), "execute_bash"),
        (lambda: Shell("true", "date +%s%N >/workspace/made"), "what is handed to EVAL"),
        (lambda: Shell("true", question=lambda: f"Work. {random.random()}"), "the prompt"),
    ],
    ids=["a time in no form that is known", "a random order", "a file that nobody has read", "the question"],
)
async def test_another_world_is_named(provider: SandboxProvider, family: Callable[[], Shell], what: str) -> None:
    found = await once(provider, family())
    assert found.flaky
    assert found.worlds == 1
    assert found.first is not None
    assert found.first.what.startswith(what)
    assert found.first.recorded != found.first.replayed
    shown = told([found])
    assert "FLAKY" in shown
    assert "Shell, example 1, turn" in shown
    assert any(line.startswith("+ ") for line in found.first.lines)


async def test_what_a_family_declares_volatile_is_no_difference(provider: SandboxProvider) -> None:
    found = await once(provider, Shell("true", "echo ran for $(date +%s%N)", volatile=(r"ran for \d+",)))
    assert not found.flaky


async def test_a_score_that_differs_is_named_where_worlds_do_not(provider: SandboxProvider) -> None:
    rewards = itertools.cycle([0.5, 0.25])
    found = await once(provider, Shell("true", reward=lambda: next(rewards)), times=3)
    assert (found.flaky, found.worlds, found.scores, found.scores_differ) == (True, 0, [0.5, 0.25], True)
    assert "scored differently (0.5, 0.25)" in told([found])


async def test_a_run_that_fails_is_named(provider: SandboxProvider) -> None:
    rewards = iter([1.0])
    found = await once(provider, Shell("true", reward=lambda: next(rewards)))
    assert found.flaky
    assert found.error is not None
    assert found.error.startswith("run 2 of 2: ")
