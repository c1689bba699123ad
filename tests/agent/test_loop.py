"""A rollout ends for one stated reason, holds every token once, and shows the model none of our own failures."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from prorl_mq.converters import prorl
from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import check
from sandbox.errors import SandboxGone
from sandbox.protocol import ShellResult
from tests.agent.chat import ScriptedPolicy, bare, call, tooled
from workers import metrics
from workers.agent.calls import MAX_CALLS_PER_TURN
from workers.agent.compaction import History
from workers.agent.hermes import Message
from workers.agent.loop import run_agent
from workers.agent.renderer import Renderer
from workers.agent.result import MAX_REFUSED_TURNS, AgentResult
from workers.agent.seeds import turn_seed
from workers.agent.tools import TOOLS, Refused
from workers.handler import SandboxLost
from workers.inference.protocol import ContextFull, InferenceError, NoBackend

pytestmark = pytest.mark.anyio
MESSAGES = [Message(role="system", content="You help."), Message(role="user", content="How many?")]
BASH = call("execute_bash", '{"command": "ls"}')


class TimeIsUp:
    """Nothing comes of waiting for it: the clock of the loop leaps past every deadline instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    async def wait(self, *_: Any) -> None:
        loop = asyncio.get_running_loop()
        late = loop.time() + 3600
        self.monkeypatch.setattr(loop, "time", lambda: late)
        await asyncio.Event().wait()


class Shell:
    """A sandbox whose shell does one thing."""

    def __init__(self, does: Any = None) -> None:
        self.does = does
        self.commands: list[str] = []

    async def bash(self, command: str, *, timeout_s: float = 30.0, is_input: bool = False) -> ShellResult:
        self.commands.append(command)
        if isinstance(self.does, Exception):
            raise self.does
        if self.does is not None:
            await self.does.wait()
        return ShellResult(output="a.txt\n", exit_code=0)


async def rollout(texts: list[str], *, renderer: Renderer | None = None, shell: Any = None, **limits: Any):
    """A rollout whose completions are `texts`, and the policy that gave them."""
    policy = limits.pop("policy", None) or ScriptedPolicy(renderer or tooled(), texts)
    renderer = policy.renderer
    result = await run_agent(
        policy=policy,
        renderer=renderer,
        messages=MESSAGES,
        tools=list(TOOLS.values()),
        sandbox=shell or Shell(),
        compact=limits.pop("compact", None),
        tell_budget=limits.pop("tell_budget", False),
        reply=limits.pop("reply", None),
        sampling=Sampling(**{"seed": 1, **limits}),
        sample="task:0",
        deadline=asyncio.get_running_loop().time() + 60,
    )
    return result, policy


def ending(result: AgentResult) -> tuple[str, str | None]:
    return result.trajectory.stop_reason, result.trajectory.truncated_by


@pytest.mark.parametrize("renderer", [bare(), tooled()], ids=["bare", "tooled"])
async def test_every_prompt_starts_with_all_that_came_before(renderer: Renderer) -> None:
    result, policy = await rollout([BASH, f"Look:\n{BASH}…", call("finish", '{"message": "1"}')], renderer=renderer)
    assert (result.answer, ending(result)) == ("1", ("finish", None))
    [segment] = result.trajectory.segments
    whole = [*segment.prompt_ids, *segment.response_ids]
    assert segment.prompt_ids == policy.prompts[0]
    for prompt, turn in zip(policy.prompts, result.trajectory.turns, strict=True):
        assert whole[: len(prompt)] == prompt
        assert turn.prompt_tokens == len(prompt)
    assert sum(segment.loss_mask) == result.sampled_tokens == sum(t.completion_tokens for t in result.trajectory.turns)
    assert len(segment.spans) == 3
    assert (result.tool_calls, result.refused_calls, result.forks) == (3, 0, 0)


async def test_a_text_without_a_call_is_the_answer() -> None:
    result, _ = await rollout(["<think>\nhm\n</think>\n\nIt is 42."])
    assert (result.answer, ending(result)) == ("It is 42.", ("answer", None))


@pytest.mark.parametrize("renderer", [bare(), tooled()], ids=["bare", "tooled"])
async def test_an_environment_answers_turns_that_call_no_tool_until_it_is_over(renderer: Renderer) -> None:
    heard: list[str] = []

    async def reply(text: str) -> str | None:
        heard.append(text)
        return None if text == "done" else f"You said {text}."

    result, policy = await rollout(["one", BASH, "two", "done"], renderer=renderer, reply=reply)
    assert (heard, ending(result)) == (["one", "two", "done"], ("answer", None))
    assert [turn.reply for turn in result.trajectory.turns] == ["You said one.", "", "You said two.", ""]
    for number, said in enumerate(["You said one.", "a.txt", "You said two."], 1):
        assert policy.prompts[number][: len(policy.prompts[number - 1])] == policy.prompts[number - 1]
        assert said in renderer.text(policy.prompts[number][len(policy.prompts[number - 1]) :])
    told = [(each["role"], each["content"]) for each in prorl.messages(result.trajectory)[2:]]
    assert [each for each in told if each[0] != "assistant"] == [
        ("user", "You said one."),
        ("tool", "a.txt"),
        ("user", "You said two."),
    ]
    assert [message.role for message in result.exchanged] == [
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


async def test_an_environment_that_does_not_answer_in_time_truncates(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = await rollout(["one"], reply=TimeIsUp(monkeypatch).wait)
    assert (ending(result), result.trajectory.turns[0].reply) == (("time", "time"), "")


async def test_nothing_follows_the_last_completion() -> None:
    result, _ = await rollout([BASH, call("finish", '{"message": "1"}')])
    assert result.trajectory.segments[0].loss_mask[-1] == 1


async def test_several_calls_of_a_turn_run_in_order() -> None:
    shell = Shell()
    two = call("execute_bash", '{"command": "a"}') + call("execute_bash", '{"command": "b"}')
    result, _ = await rollout([two, "done"], shell=shell)
    assert shell.commands == ["a", "b"]
    assert [done.result for done in result.trajectory.turns[0].tool_calls] == ["a.txt", "a.txt"]


async def test_a_bad_call_is_told_to_the_model_and_counted() -> None:
    result, policy = await rollout(["<tool_call>{oops</tool_call>", call("ls", "{}"), "42"])
    assert (result.refused_calls, result.tool_calls, result.agent_error) == (2, 0, None)
    assert "is not valid JSON" in policy.renderer.text(policy.prompts[1])
    assert "there is no tool 'ls'" in policy.renderer.text(policy.prompts[2])


async def test_a_policy_that_never_gets_a_call_right_has_broken_the_protocol() -> None:
    result, _ = await rollout(["<tool_call>{oops</tool_call>"] * MAX_REFUSED_TURNS)
    assert ending(result) == ("protocol", None)
    assert "4 calls were refused" in (result.agent_error or "")


async def test_turns_are_limited() -> None:
    result, _ = await rollout([BASH] * 3, max_turns=3)
    assert ending(result) == ("max_turns", "turns")


async def test_sampled_tokens_are_limited() -> None:
    result, _ = await rollout([BASH, "x" * 500], max_tokens=100)
    assert (ending(result), result.sampled_tokens) == (("max_tokens", "tokens"), 100)


async def test_tokens_of_a_turn_are_limited() -> None:
    result, _ = await rollout(["It is " + "4" * 500], max_tokens_per_turn=20)
    assert (ending(result), result.sampled_tokens) == (("max_tokens", "tokens"), 20)
    assert result.answer.startswith("It is 4")


async def test_the_context_is_limited() -> None:
    _, policy = await rollout(["42"])
    room = len(policy.prompts[0]) + 5
    result, _ = await rollout(["x" * 500], max_context_tokens=room)
    assert (ending(result), result.sampled_tokens) == (("context", "context"), 5)


async def test_a_backend_whose_context_is_smaller_than_the_jobs_ends_the_rollout() -> None:
    """Not its attempt: another one would come to the same end."""

    class Small(ScriptedPolicy):
        async def generate(self, *prompt: Any, **about: Any) -> Any:
            if not self.texts:
                raise ContextFull("the prompt fills its context")
            return await super().generate(*prompt, **about)

    result, _ = await rollout([], policy=Small(tooled(), [BASH]))
    assert (ending(result), len(result.trajectory.turns)) == (("context", "context"), 1)
    check(result.trajectory)


async def test_a_prompt_that_fills_the_context_samples_nothing() -> None:
    result, policy = await rollout([], max_context_tokens=16)
    assert (ending(result), policy.prompts, list(result.trajectory.turns)) == (("context", "context"), [], [])


async def test_a_tool_that_outlasts_the_deadline_truncates_and_keeps_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = await rollout([BASH], shell=Shell(TimeIsUp(monkeypatch)))
    assert ending(result) == ("time", "time")
    assert len(result.trajectory.turns) == 1


async def test_our_own_failure_is_raised_not_shown() -> None:
    with pytest.raises(NoBackend, match="none left"):
        await rollout([BASH], shell=Shell(NoBackend("none left")))


async def test_a_sandbox_that_fails_under_a_call_ends_the_rollout_with_what_was_sampled() -> None:
    """Whose fault it is, its stage decides: the tokens must be there for a trainer if it was the agent's."""
    with pytest.raises(SandboxLost, match="SandboxGone: it died") as lost:
        await rollout([BASH], shell=Shell(SandboxGone("it died")))
    sampled = lost.value.trajectory
    assert sampled is not None
    check(sampled)
    assert (len(sampled.turns), sampled.stop_reason) == (1, "sandbox")


async def test_cancelling_stops_a_running_tool_at_once() -> None:
    shell = Shell(asyncio.Event())
    task = asyncio.create_task(rollout([BASH], shell=shell))
    while not shell.commands:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_calls_beyond_the_limit_of_a_turn_get_one_answer_together() -> None:
    shell = Shell()
    many = "".join(call("execute_bash", f'{{"command": "{number}"}}') for number in range(MAX_CALLS_PER_TURN + 3))
    result, _ = await rollout([many, "done"], shell=shell)
    assert len(shell.commands) == MAX_CALLS_PER_TURN
    *_, last = result.trajectory.turns[0].tool_calls
    assert "the others were not" in last.result
    assert (result.tool_calls, result.refused_calls) == (MAX_CALLS_PER_TURN, 1)


async def test_a_call_is_recorded_with_its_arguments_and_a_bad_one_as_written() -> None:
    result, _ = await rollout([BASH + "<tool_call>{oops</tool_call>", "done"])
    good, bad = result.trajectory.turns[0].tool_calls
    assert (good.name, good.arguments) == ("execute_bash", '{"command": "ls"}')
    assert (bad.name, bad.arguments, bad.ok) == ("", "{oops", False)


async def test_a_family_compacts_a_history_and_the_rollout_goes_on_in_a_new_segment() -> None:
    seen: list[History] = []

    async def keep_the_last_result(history: History) -> list[Message] | None:
        await asyncio.sleep(0)
        seen.append(history)
        if history.turns != 2:
            return None
        return [*MESSAGES, Message(role="user", content=f"So far: {history.messages[-1].content}")]

    result, policy = await rollout([BASH, BASH, "42"], compact=keep_the_last_result)
    first, second = result.trajectory.segments
    assert [message.role for message in seen[1].messages] == ["system", "user", *["assistant", "tool"] * 2]
    assert "<|im_end|>" not in seen[0].messages[2].content
    assert seen[0].context_tokens == len(policy.prompts[1])
    assert "So far: a.txt" in second.prompt_text
    assert (second.prompt_ids, second.opened_by) == (policy.prompts[2], "compaction")
    assert [*first.prompt_ids, *first.response_ids][: len(policy.prompts[1])] == policy.prompts[1]
    assert [turn.segment for turn in result.trajectory.turns] == [0, 0, 1]
    assert (result.forks, result.trajectory.breaks, result.answer) == (1, 0, "42")
    check(result.trajectory)


async def test_a_compaction_that_outlasts_the_deadline_truncates(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = await rollout([BASH], compact=TimeIsUp(monkeypatch).wait)
    assert ending(result) == ("time", "time")
    check(result.trajectory)


async def test_a_turn_that_was_aborted_for_good_is_our_own_failure() -> None:
    policy = ScriptedPolicy(tooled(), ["It is…"])
    policy.cut = "abort"
    with pytest.raises(InferenceError, match="aborted a turn that nobody resumed"):
        await rollout([], policy=policy)


async def test_seeds_repeat_for_a_sample_and_differ_between_turns_and_samples() -> None:
    _, first = await rollout([BASH, "42"])
    _, again = await rollout([BASH, "42"])
    assert first.seeds == again.seeds
    assert len({*first.seeds, turn_seed(1, "task:1", 0), turn_seed(2, "task:0", 0)}) == 4
    assert turn_seed(None, "task:0", 0) is None


async def test_a_model_that_is_told_its_budget_reads_what_is_left_behind_each_answer() -> None:
    texts = [BASH, call("wombat", "{}"), "Done."]
    result, policy = await rollout(texts, tell_budget=True, max_turns=7, max_tokens=5000, max_context_tokens=32768)
    second, third = (policy.renderer.text(prompt) for prompt in policy.prompts[1:])
    spent = result.trajectory.turns[0].completion_tokens
    assert f"a.txt\n[left: 6 turns, {5000 - spent} tokens]" in second
    assert "[left: 5 turns, " in third
    assert [[c.refused for c in turn.tool_calls] for turn in result.trajectory.turns] == [[False], [True], []]


def counted() -> Counter[str]:
    """Calls of tools since this process began."""
    [family] = metrics.tool_calls.collect()
    told = {each.labels["result"]: int(each.value) for each in family.samples if each.name.endswith("_total")}
    return Counter(told)


async def test_calls_are_counted_by_how_they_went() -> None:
    """A policy that forgets how to call tools shows in the metrics before it shows in the reward."""
    wrong = {
        Refused.UNREADABLE: "<tool_call>\nls -l\n</tool_call>",
        Refused.UNKNOWN_TOOL: call("wombat", "{}"),
        Refused.WRONG_ARGUMENTS: call("think", '{"thought": 3}'),
        Refused.TOO_LARGE: call("think", f'{{"thought": "{"x" * (300 << 10)}"}}'),
    }
    before = counted()
    texts = [text for each in wrong.values() for text in (each, BASH)]
    roomy = {"max_tokens_per_turn": 1 << 20, "max_tokens": 1 << 20, "max_context_tokens": 1 << 21}
    result, _ = await rollout([*texts, "Done."], **roomy)
    assert ending(result) == ("answer", None)
    assert counted() - before == {"ok": 4, **dict.fromkeys(wrong, 1)}
