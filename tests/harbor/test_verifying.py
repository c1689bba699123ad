"""Tasks in real sandboxes: what the agent left reaches a fresh one, the tests are there alone, the reward is read."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.schema.messages import Limits
from prorl_mq.schema.task_schema import limits_for
from tests.handlers.conftest import provider
from tests.harbor.tasks import IMAGE, SOLVED, toml, write
from tests.sandbox.conftest import TOOLS_DIR
from workers.egress.opening import VARIABLE, EgressRefused
from workers.handler import Score
from workers.handlers.clocks import OF_THE_BUDGET
from workers.handlers.harbor import artefact, verifying
from workers.handlers.harbor.dataset import line
from workers.handlers.harbor.family import Harbor
from workers.handlers.harbor.reading import read_task
from workers.handlers.harbor.verifying import NoReward, VerifierTimeout
from workers.rehearsal.harbor import Nop, checked, earned
from workers.rehearsal.stages import Rehearsal, rehearsing, task_of

__all__ = ["provider"]
pytestmark = pytest.mark.anyio
FINISH = '<tool_call>\n{"name": "finish", "arguments": {"message": "done"}}\n</tool_call>'


@pytest.fixture
async def rehearsal(provider: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rehearsal]:
    """With the base image of sandboxes under the name that the tests' tasks have for it."""
    base = TOOLS_DIR / "images" / "base"
    if not base.is_dir():
        pytest.skip("there is no base image: run `make sandbox-tools`")
    images = tmp_path / "tools" / "images" / "harbor"
    images.mkdir(parents=True)
    (images / "images.json").write_text(json.dumps({IMAGE: str(base)}))
    monkeypatch.setenv("PRORL_SANDBOX_TOOLS", str(tmp_path / "tools"))
    async with rehearsing(provider) as made:
        yield made


async def rollout(rehearsal: Rehearsal, directory: Path, *commands: str, handler: Harbor | None = None) -> Any:
    """Tool answers of a policy that runs these commands, and its score."""
    told = line(read_task(directory))
    family = handler or Harbor()
    task = task_of(family, {**told["payload"], **told["sealed"]}, told["task_id"])
    calls = [json.dumps({"name": "execute_bash", "arguments": {"command": command}}) for command in commands]
    ran = await rehearsal.run(family, task, [*(f"<tool_call>\n{call}\n</tool_call>" for call in calls), FINISH])
    turns = ran.trajectory.turns if ran.trajectory is not None else ()
    return [call.result for turn in turns for call in turn.tool_calls], await rehearsal.score(family, task, ran)


async def verified(rehearsal: Rehearsal, directory: Path, test: str) -> Score:
    """The score that a verifier gives to an agent that did nothing."""
    task = write(directory, {"tests/test.sh": f"#!/bin/sh\n{test}\n"})
    score: Score = (await rollout(rehearsal, task, handler=Nop()))[1]
    return score


async def test_a_policy_earns_the_reward_and_sees_neither_tests_nor_solution(
    rehearsal: Rehearsal, tmp_path: Path
) -> None:
    said, score = await rollout(
        rehearsal, write(tmp_path / "task", {}), "pwd; ls -d /tests /solution /logs/verifier/*", "echo 42 >answer"
    )
    assert said[0].startswith("/srv\n")
    assert said[0].count("cannot access") == 3
    assert score == Score(reward=1.0)


async def test_files_are_carried_with_their_modes_and_what_went_is_gone_while_processes_are_not(
    rehearsal: Rehearsal, tmp_path: Path
) -> None:
    checks = (
        "[ ! -e gone ]", "[ -x new ]", "[ -L link ]", "[ -d moved/inner ]", "[ ! -e old ]", "[ ! -e /workspace/x ]",
        "! pgrep -x sleep", "[ $A = ab ]",
    )  # fmt: skip
    directory = write(tmp_path / "task", {
        "task.toml": toml("environment", 'env = {A = "ab"}'),
        "environment/gone": "x",
        "environment/old/inner/file": "y",
        "tests/test.sh": f"#!/bin/sh\n{' && '.join(checks)}; echo $((1 - $?)) >/logs/verifier/reward.txt\n",
    })  # fmt: skip
    command = "rm gone; mv old moved; echo '#!/bin/sh' >new; chmod 700 new; ln -s new link; touch /workspace/x"
    command += "; sleep 300 &"
    assert (await rollout(rehearsal, directory, command))[1].reward == 1.0


@pytest.mark.parametrize("defended", [True, False])
@pytest.mark.parametrize("separate", [False, True])
async def test_a_link_to_the_tests_shows_nothing(
    rehearsal: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, defended: bool, separate: bool
) -> None:
    """The control: without the removal of such links this earns the reward."""
    if not defended:

        async def leave(*_: Any) -> None: ...

        monkeypatch.setattr(artefact, "unlink", leave)
    apart = 'artifacts = ["/srv"]\n' + toml("verifier", 'environment_mode = "separate"')
    directory = write(tmp_path / "task", {"tests/expected": "42\n", **({"task.toml": apart} if separate else {})})
    assert (await rollout(rehearsal, directory, "ln -s /tests/expected answer"))[1].reward == float(not defended)


async def test_a_reward_of_json_goes_before_text_and_its_other_numbers_are_parts(
    rehearsal: Rehearsal, tmp_path: Path
) -> None:
    told = '{"reward": 0.25, "speed": 3, "ok": true}'
    both = f"cd /logs/verifier; echo 1 >reward.txt; echo '{told}' >reward.json; exit 7"
    assert await verified(rehearsal, tmp_path / "a", both) == Score(reward=0.25, parts={"speed": 3.0, "ok": 1.0})
    one = "echo '{\"accuracy\": -2}' >/logs/verifier/reward.json"
    assert await verified(rehearsal, tmp_path / "b", one) == Score(reward=-2.0)


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("true", "wrote neither"),
        (": >/logs/verifier/reward.txt", "reward.txt cannot be read"),
        ("echo nan >/logs/verifier/reward.txt", "no finite number"),
        ('echo \'{"a": 1, "b": 2}\' >/logs/verifier/reward.json', "none of a, b is `reward`"),
        ('echo \'{"reward": "1"}\' >/logs/verifier/reward.json', "no finite number"),
        ("echo 1 >/logs/verifier/reward.json", "no JSON object"),
    ],
)
async def test_a_reward_that_cannot_be_read_is_no_zero(
    rehearsal: Rehearsal, tmp_path: Path, test: str, said: str
) -> None:
    with pytest.raises(NoReward, match=said):
        await verified(rehearsal, tmp_path / "task", test)


async def test_a_verifier_that_does_not_end_gives_no_reward(rehearsal: Rehearsal, tmp_path: Path) -> None:
    directory = write(tmp_path / "task", {
        "task.toml": toml("verifier", "timeout_sec = 0.5"),
        "tests/test.sh": "#!/bin/sh\necho 1 >/logs/verifier/reward.txt; sleep 60\n",
    })  # fmt: skip
    with pytest.raises(VerifierTimeout, match="did not end within"):
        await rollout(rehearsal, directory, handler=Nop())


async def test_without_the_snapshot_and_with_a_full_disk_everything_is_carried(
    rehearsal: Rehearsal, tmp_path: Path
) -> None:
    directory = write(tmp_path / "task", {
        "task.toml": toml("environment", "storage_mb = 16"),
        "environment/given": "1",
        "tests/test.sh": f"#!/bin/sh\n[ ! -e given ] || exit 1\n{SOLVED}",
    })  # fmt: skip
    fill = "echo 42 >answer; rm given /tmp/.prorl-harbor-snapshot; yes >/tmp/large 2>/dev/null"
    said, score = await rollout(rehearsal, directory, fill + "; df --output=avail /tmp")
    full, seen = said[0].split()[:2] == ["Avail", "0"], "[over the disk limit" in said[0]
    assert full or seen, said[0]
    assert score.reward == 1.0


@pytest.mark.parametrize("timeout_s", [600, 1800])
async def test_a_verifier_has_its_own_time_in_a_check_and_the_usual_one_in_a_batch(
    rehearsal: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout_s: int
) -> None:
    lefts: list[float] = []

    async def verify(*given: Any) -> Score:
        lefts.append(given[-1])
        return Score(reward=0.0)

    monkeypatch.setattr(verifying, "verify", verify)
    task = read_task(write(tmp_path / "task", {"task.toml": toml("verifier", f"timeout_sec = {timeout_s}")}))
    await earned(rehearsal, task, Nop())
    assert lefts[0] > timeout_s
    assert limits_for(Harbor.schema, Limits()).eval_ms * OF_THE_BUDGET / 1000 > 600


async def test_more_than_can_be_carried_earns_nothing(
    rehearsal: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefact, "RAW_BYTES", 100_000)
    command = "echo 42 >answer; head -c 200000 /dev/zero >large"
    score = (await rollout(rehearsal, write(tmp_path / "task", {}), command))[1]
    assert (score.reward, score.note and "are carried" in score.note) == (0.0, True)


async def test_a_separate_verifier_gets_what_was_declared_and_what_was_collected(
    rehearsal: Rehearsal, tmp_path: Path
) -> None:
    collect = 'environment_mode = "separate"\ncollect = [{command = "cat kept >/out/collected"}]'
    test = '#!/bin/sh\n[ "$(cat /out/collected)" = yes ] && [ ! -e kept ] && [ ! -e /out/a.o ]; '
    directory = write(tmp_path / "task", {
        "task.toml": 'artifacts = [{source = "/out", exclude = ["*.o"]}]\n' + toml("verifier", collect),
        "tests/test.sh": test + "echo $((1 - $?)) >/logs/verifier/reward.txt\n",
    })  # fmt: skip
    assert (await rollout(rehearsal, directory, "echo yes >kept; touch /out/a.o"))[1].reward == 1.0


async def test_a_check_tells_of_each_task_whether_oracle_and_nop_earn_what_they_must(
    rehearsal: Rehearsal, tmp_path: Path
) -> None:
    good = write(tmp_path / "good", {})
    generous = write(tmp_path / "generous", {"tests/test.sh": "#!/bin/sh\necho 1 >/logs/verifier/reward.txt\n"})
    unread = write(tmp_path / "unread", {"instruction.md": ""})
    found = [(each.agent, each.reward, each.fault) async for each in checked(rehearsal, [good, generous, unread])]
    assert found == [
        ("oracle", 1.0, None), ("nop", 0.0, None),
        ("oracle", 1.0, None), ("nop", 1.0, "it earns 1, and should earn 0"),
        ("reader", None, "there is no instruction.md in it"),
    ]  # fmt: skip


async def test_hosts_of_a_task_are_asked_of_the_operator(
    rehearsal: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = toml("agent", 'network_mode = "allowlist"\nallowed_hosts = ["a.example"]')
    task = read_task(write(tmp_path / "task", {"task.toml": text}))
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(EgressRefused, match=r"the task lists a\.example"):
        await earned(rehearsal, task, Nop())
    monkeypatch.setenv(VARIABLE, "a.example")
    assert await earned(rehearsal, task, Nop()) == 0.0
