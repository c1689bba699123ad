"""mini-swe-agent as it is published fixes a real bug in its sandbox, and its rollout is recorded token by token."""

import json
import os
import shlex

import pytest

from prorl_mq.schema.trajectory import check
from tests.agent.chat import call
from tests.sandbox.conftest import TOOLS_DIR
from tests.swe.conftest import QUICK, ROWS, Stages, images, provider, stages
from workers.external.harness import AGENTS, NoHarness
from workers.handlers.swe.family import SoftwareEngineering

__all__ = ["images", "provider", "stages"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]
FIX = "sed -i 's/^\\t\\treturn include$/\\t\\treturn bool(include)/' pathspec/pathspec.py && git diff --stat"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def bash(command: str) -> str:
    return call("bash", json.dumps({"command": command}))


@pytest.fixture(autouse=True)
def agents(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (TOOLS_DIR / "agents/mini-swe-agent/.complete").exists() and not os.environ.get("CI"):
        pytest.skip("no mini-swe-agent: run `make agents`")
    monkeypatch.setenv(AGENTS, str(TOOLS_DIR / "agents"))


@pytest.mark.timeout(300)
async def test_it_resolves_an_instance_unmodified(stages: Stages) -> None:
    row = {**ROWS[QUICK], "agent": "mini-swe-agent"}
    turns = [bash("ls"), bash(FIX), bash(SUBMIT)]
    ran, score = await stages.rollout(SoftwareEngineering(), row, turns, run_s=240)
    assert score.reward == 1.0, (score.note, ran.trajectory and [turn.text for turn in ran.trajectory.turns])
    check(ran.trajectory)
    assert (ran.trajectory.stop_reason, len(ran.trajectory.turns), ran.trajectory.forks) == ("finish", 3, 0)
    assert b"return bool(include)" in ran.export["patch"]
    assert shlex.quote(SUBMIT)[1:-1] in ran.trajectory.turns[-1].text


async def test_an_unknown_agent_is_refused_by_name(stages: Stages) -> None:
    with pytest.raises(NoHarness, match=r"has no agent 'mini-swe-agnt' \(did you mean 'mini-swe-agent'"):
        await stages.rollout(SoftwareEngineering(), {**ROWS[QUICK], "agent": "mini-swe-agnt"}, [])
