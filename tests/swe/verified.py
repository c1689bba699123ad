"""Rows of all twelve repositories of SWE-bench Verified, in images with the Pythons that SWE-bench's table names.

`make test-swe-images` builds the images and runs this file by its name: a row whose Python is not on the machine has no
image, and is skipped.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.swe.conftest import IMAGES, ROOT, Stages, kept
from workers.handlers.swe.family import SoftwareEngineering
from workers.handlers.swe.rows import hidden_of, task_of
from workers.handlers.swe.spec import spec_of, table

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]
ROWS: dict[str, dict[str, Any]] = {
    row["task_id"]: row["payload"]
    for row in map(json.loads, (ROOT / "examples/swe/verified.jsonl").read_text().splitlines())
}
OF_DEBIAN = "3.11"


@pytest.fixture(params=ROWS)
def row(request: pytest.FixtureRequest) -> dict[str, Any]:
    payload = ROWS[request.param]
    if request.param not in json.loads((IMAGES / "images.json").read_text()):
        pytest.skip(f"there is no Python {payload['environment']['python']} on this machine")
    return payload


def test_all_repositories_of_the_table_have_a_row_with_its_python() -> None:
    assert {row["repo"] for row in ROWS.values()} == set(table())
    for payload in ROWS.values():
        spec = spec_of(task_of(payload), hidden_of(payload))
        assert spec is not None
        assert spec.python == payload["environment"].get("python", OF_DEBIAN), payload["instance_id"]


async def test_the_fix_of_the_next_release_earns_1(stages: Stages, row: dict[str, Any]) -> None:
    score = await kept(stages, "oracle", row["instance_id"], row["patch"], row)
    assert (score.reward, dict(score.parts)) == (1.0, {"fail_to_pass": 1.0, "pass_to_pass": 1.0}), score.note


async def test_no_patch_and_one_that_fixes_nothing_earn_0(
    stages: Stages, row: dict[str, Any], patch_of: Callable[..., str]
) -> None:
    assert (await kept(stages, "empty", row["instance_id"], "", row)).reward == 0.0

    def change(root: Path) -> None:
        (root / "NOTES").write_text("I looked at it.\n")

    score = await kept(stages, "hack", row["instance_id"], patch_of(change, row["instance_id"]), row)
    assert (score.reward, score.parts["fail_to_pass"]) == (0.0, 0.0), score.note


async def test_the_images_python_is_the_one_of_the_table(stages: Stages, row: dict[str, Any]) -> None:
    """What an agent sees."""
    from tests.agent.chat import call

    look = call("execute_bash", json.dumps({"command": "python -c 'import sys; print(sys.version_info[:2])'"}))
    ran, _ = await stages.rollout(SoftwareEngineering(), row, [look, call("finish", '{"message": ""}')])
    assert ran.trajectory is not None
    version = row["environment"].get("python", OF_DEBIAN)
    assert ran.trajectory.turns[0].tool_calls[0].result.strip() == f"({version.replace('.', ', ')})"
