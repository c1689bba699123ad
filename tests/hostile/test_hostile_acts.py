"""No act of an agent yields null, and none of a node a reward: a sample of what `make soak` does for long."""

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from sandbox.errors import SandboxUnavailable
from sandbox.isolators.kinds import make_provider
from tests.hostile.acts import Act
from tests.hostile.episodes import NODE, Found, Violation, _in_doubt, _scored, episode, kept
from tests.sandbox.conftest import ISOLATED, TOOLS_DIR, require_apptainer
from workers.handler import Ran, SandboxLost, Score
from workers.rehearsal.stages import rehearsing

pytestmark = pytest.mark.anyio
ACTS = 25
SEEDS = {"bubblewrap": range(1, 13), "apptainer": range(1, 4)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ISOLATED)
async def test_hostile_agents_and_failing_nodes_break_no_promise(kind: str, tmp_path: Path) -> None:
    if kind == "apptainer":
        require_apptainer()
    try:
        make_provider(kind, node=NODE, state_dir=tmp_path, tools_dir=TOOLS_DIR)
    except SandboxUnavailable as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    found = Found()
    async with kept(kind, tmp_path, TOOLS_DIR, warm=4) as provider, rehearsing(provider) as rehearsal:
        made = [episode(seed, provider, rehearsal.model, count=ACTS) for seed in SEEDS[kind]]
        for one in await asyncio.gather(*made):
            found.add(one)
    assert found.violations == []
    assert found.acts.total() > 2 * ACTS


class Gives:
    """A scorer that gives anything so much, or raises."""

    def __init__(self, given: float | Exception) -> None:
        self.given = given

    async def eval(self, _: object) -> Score:
        if isinstance(self.given, Exception):
            raise self.given
        return Score(reward=self.given)


@pytest.mark.parametrize(
    ("given", "said"), [(0.0, []), (1.0, ["EVAL gave 1.0"]), (ValueError("bad"), ["EVAL raised ValueError"])]
)
async def test_a_scorer_that_is_taken_in_is_found(given: float | Exception, said: list[str]) -> None:
    found, asked = Found(), cast("Any", AsksTheFamily())
    await _scored(7, asked, cast("Any", Gives(given)), None, Ran(trajectory=None, export="x"), found)
    assert [each.what[: len(text)] for each, text in zip(found.violations, said, strict=True)] == said


class AsksTheFamily:
    """A rehearsal without a task."""

    async def score(self, family: Gives, *_: object) -> Score:
        return await family.eval(None)


@pytest.mark.parametrize(
    ("said", "violations"),
    [
        ("SandboxGone: sandbox a on b is gone", []),
        ("SandboxError: the server of sandbox a failed: OverflowError", [Violation(7, "our server failed over")]),
    ],
)
def test_a_server_of_ours_that_fails_over_bytes_is_found(said: str, violations: list[Violation]) -> None:
    found = _in_doubt(7, Found(), [Act("execute_bash", {}, "an act")], SandboxLost(said, None))
    assert [(each.seed, each.what[:22]) for each in found.violations] == violations
    assert found.doubts.total() == 1
