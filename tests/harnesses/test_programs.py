"""Codex, Claude Code, OpenCode and mini-swe-agent, unmodified in a sandbox: each token that the policy samples for them
is recorded, and trained in one row alone.
"""

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from prorl_mq.schema.messages import Sampling
from prorl_mq.schema.trajectory import Trajectory
from sandbox.protocol import Sandbox
from tests.harnesses.programs import CHOSEN, PROGRAMS, done, is_title, waits
from tests.harnesses.relay import PROGRAM as RELAY
from tests.harnesses.script import PromptedPolicy, asked_last, is_recorded_exactly, turns_before
from tests.sandbox.conftest import (
    ISOLATED,
    TOOLS_DIR,
    Create,
    create,
    provider,
    python_dir,
    require_apptainer,
    state_dir,
    usual_image,
)
from workers.external.harness import AGENTS, Harness, harness, mount_of
from workers.external.interception import ClientCall, End, Interceptor, Refuse
from workers.external.running import ExternalResult, run_external

__all__ = ["create", "provider", "python_dir", "state_dir", "usual_image"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]
LEAD = [name for name in CHOSEN if PROGRAMS[name].spawn is not None]
COMPACT = [name for name in CHOSEN if PROGRAMS[name].compaction]
TITLE = "A title"
Measured = Callable[[PromptedPolicy, Trajectory | None], list[str]]


@pytest.fixture(params=ISOLATED if len(CHOSEN) > 2 else ISOLATED[1:])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "apptainer":
        require_apptainer()
    return str(request.param)


@pytest.fixture(autouse=True)
def agents(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in CHOSEN if not (TOOLS_DIR / "agents" / name / ".complete").exists()]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"no {', '.join(missing)}: run `make harnesses`")
    monkeypatch.setenv(AGENTS, str(TOOLS_DIR / "agents"))


async def boxed(create: Create, name: str) -> Sandbox:
    return await create(door=True, mounts=[await asyncio.to_thread(mount_of, name)])


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """Asserts that a rollout is recorded exactly, and tells its figures to `python -m tests.harnesses`."""

    def told(policy: PromptedPolicy, trajectory: Trajectory | None) -> list[str]:
        left = is_recorded_exactly(policy, trajectory)
        assert trajectory is not None
        trained = [sum(row.loss_mask) for row in trajectory.segments]
        sampled = sum(len(each.ids) for each in policy.sampled)
        figures = [len(policy.sampled), sampled, sum(trained), sum(map(bool, trained))]  # in the order of the table
        request.node.user_properties.append(("figures", figures))
        return left

    return told


async def ran(
    box: Sandbox,
    started: Harness,
    policy: PromptedPolicy,
    *,
    room: int = 1 << 20,
    max_turns: int = 40,
    interceptor: Interceptor | None = None,
) -> ExternalResult:
    return await run_external(
        harness=started,
        task="The whole task",
        workdir="/workspace",
        policy=policy,
        renderer=policy.renderer,
        sandbox=box,
        sampling=Sampling(max_tokens_per_turn=4096, max_tokens=1 << 20, max_context_tokens=room, max_turns=max_turns),
        sample="task:0",
        deadline=asyncio.get_running_loop().time() + 500,
        interceptor=interceptor,
    )


def scripted(turns: Mapping[int, str], last: str) -> Callable[[str], str]:
    """Says these answers of one conversation by their numbers, and then `last`."""
    return lambda prompt: TITLE if is_title(prompt) else turns.get(turns_before(prompt), last)


@pytest.mark.parametrize("name", CHOSEN)
async def test_its_tools_work_and_its_conversation_is_one_row(create: Create, name: str, measured: Measured) -> None:
    """Two calls at once, with characters that clients escape in ways of their own."""
    bash = PROGRAMS[name].bash
    both = bash("printf 'é<%s>' $((40+2)) > one") + "\n" + bash('echo "a  b" > two; cat one')
    policy = PromptedPolicy(scripted({0: both, 1: bash("cat one two")}, done(name)))
    box = await boxed(create, name)
    result = await ran(box, harness(name), policy)
    assert (result.stop.reason, result.exit_code) == ("finish", 0), result.printed
    assert (await box.run(["cat", "/workspace/one", "/workspace/two"])).stdout.decode() == "é<42>a  b\n"
    left = measured(policy, result.trajectory)
    assert [text.removesuffix("<|im_end|>") for text in left] == ([TITLE] if name == "opencode" else [])
    assert result.trajectory is not None
    assert sum(any(row.loss_mask) for row in result.trajectory.segments) == 1
    shown = asked_last(policy.renderer.text(policy.sampled[-1].prompt))
    assert ("42" in shown, "a  b" in shown) == (True, True), shown  # mini-swe-agent escapes the rest


@pytest.mark.parametrize("name", LEAD)
async def test_its_sub_agents_are_rows_of_their_own(create: Create, name: str, measured: Measured) -> None:
    """Two at once, each with a call. The tokens of all three conversations are trained."""
    program = PROGRAMS[name]
    assert program.spawn is not None
    both = program.spawn("Part 1 of 2") + "\n" + program.spawn("Part 2 of 2")

    def say(prompt: str) -> str:
        if is_title(prompt):
            return TITLE
        if "The whole task" in prompt:
            reported = "Report 1." in prompt and "Report 2." in prompt
            return both if turns_before(prompt) == 0 else "Done." if reported else waits(prompt)
        part = 1 if "Part 1 of 2" in prompt else 2
        return program.bash(f"echo found-$((40+{part}))") if turns_before(prompt) == 0 else f"Report {part}."

    policy = PromptedPolicy(say)
    result = await ran(await boxed(create, name), harness(name), policy)
    assert (result.stop.reason, result.exit_code) == ("finish", 0), result.printed
    left = measured(policy, result.trajectory)
    assert [text.removesuffix("<|im_end|>") for text in left] == ([TITLE] if name == "opencode" else [])
    assert result.trajectory is not None
    assert sum(any(row.loss_mask) for row in result.trajectory.segments) == 3
    assert len({turn.session for turn in result.trajectory.turns}) == 3
    prompts = [policy.renderer.text(each.prompt) for each in policy.sampled]
    assert all(any(f"found-{40 + part}" in prompt for prompt in prompts) for part in (1, 2))


@pytest.mark.parametrize("name", COMPACT)
async def test_its_compaction_is_recorded_where_it_was_written(create: Create, name: str, measured: Measured) -> None:
    program, outputs = PROGRAMS[name], iter(range(1, 99))
    summary = "<summary>Little is left to do.</summary>"

    def say(prompt: str) -> str:
        if is_title(prompt):
            return TITLE
        if program.compaction in asked_last(prompt):
            return summary
        if "Little is left to do." in prompt:
            return "Done."
        return program.bash(f"head -c {program.output} /dev/zero | tr '\\0' x | fold -w 100; echo {next(outputs)}")

    policy = PromptedPolicy(say)
    result = await ran(await boxed(create, name), harness(name), policy, room=program.room, max_turns=20)
    assert (result.stop.reason, result.exit_code) == ("finish", 0), result.printed
    left = measured(policy, result.trajectory)
    assert not [text for text in left if TITLE not in text]
    assert result.trajectory is not None
    summed = [turn for turn in result.trajectory.turns if turn.text.startswith(summary)]
    assert len(summed) == 1
    assert result.trajectory.turns[-1].text.startswith("Done.")
    assert result.trajectory.turns[-1].segment != result.trajectory.turns[-3].segment


@pytest.mark.parametrize("name", CHOSEN)
async def test_an_answer_that_breaks_off_is_asked_for_again(create: Create, name: str, measured: Measured) -> None:
    """Whether the gateway notices it or not: what was sampled twice is trained once."""
    bash = PROGRAMS[name].bash
    policy = PromptedPolicy(scripted({0: bash("echo one")}, done(name)))
    found, box = harness(name), await boxed(create, name)
    behind = msgspec.structs.replace(found, argv=["python3", "-I", "-c", RELAY, "{address}", *found.argv])
    result = await ran(box, behind, policy)
    assert (await box.run(["cat", "/tmp/cut"])).exit_code == 0, "nothing was cut"
    assert (result.stop.reason, result.exit_code) == ("finish", 0), result.printed
    left = measured(policy, result.trajectory)
    assert result.trajectory is not None
    assert len(left) <= 2
    assert {turn.left_out for turn in result.trajectory.turns} <= {"", "side", "superseded", "unread"}
    assert sum(any(row.loss_mask) for row in result.trajectory.segments) == 1


@pytest.mark.parametrize("name", CHOSEN)
async def test_a_limit_ends_it(create: Create, name: str, measured: Measured) -> None:
    """It is told once: it does not ask again."""
    bash = PROGRAMS[name].bash
    policy = PromptedPolicy(lambda prompt: TITLE if is_title(prompt) else bash("echo on"))
    result = await ran(await boxed(create, name), harness(name), policy, max_turns=3)
    assert (result.stop.reason, result.stop.truncated_by) == ("max_turns", "turns"), result.printed
    measured(policy, result.trajectory)
    assert len(policy.sampled) == 3


class NoReadingOfTests:
    """The guard of docs/howto/agents.md."""

    async def call(self, call: ClientCall) -> Refuse | End | None:
        return Refuse("The tests are not for you.") if "/tests" in call.arguments else None

    async def result(self, call: ClientCall, text: str) -> str | End | None:
        return text.replace("hunter2", "[removed]") if "hunter2" in text else None


@pytest.mark.parametrize("name", CHOSEN)
async def test_a_refused_call_never_runs_and_a_secret_never_reaches_the_policy(
    create: Create, name: str, measured: Measured
) -> None:
    bash = PROGRAMS[name].bash
    turns = {0: bash("echo read > /tmp/read; cat /tests"), 1: bash("echo hunter2 is secret")}
    policy = PromptedPolicy(scripted(turns, done(name)))
    box = await boxed(create, name)
    result = await ran(box, harness(name), policy, interceptor=NoReadingOfTests())
    assert (result.stop.reason, result.exit_code) == ("finish", 0), result.printed
    assert (await box.run(["cat", "/tmp/read"])).exit_code == 1, "it ran"
    measured(policy, result.trajectory)
    last = policy.renderer.text(policy.sampled[-1].prompt)
    assert ("The tests are not for you." in last, "[removed] is secret" in last) == (True, True)
    assert "hunter2 is secret" not in last.partition("[removed]")[2]
    assert result.trajectory is not None
    assert sum(any(row.loss_mask) for row in result.trajectory.segments) == 1


def test_the_versions_are_in_one_place() -> None:
    """And each harness has what starts it."""
    root = Path(__file__).parents[2] / "ops/harnesses"
    named = dict(line.split() for line in (root / "versions").read_text().splitlines())
    assert set(named) == set(PROGRAMS) == {path.parent.name for path in root.glob("*/harness.json")}
    assert all(re.fullmatch(r"[0-9.]+", version) for version in named.values())
    for name in named:
        assert msgspec.json.decode((root / name / "harness.json").read_bytes(), type=Harness).argv
