"""What an image's environment and SWE-bench's script give the agent and the tests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.protocol import SandboxSpec
from tests.agent.chat import call
from tests.swe.conftest import IMAGES, ROWS, Stages
from workers.handlers.swe.environment import install, of_tests
from workers.handlers.swe.family import SoftwareEngineering
from workers.handlers.swe.images import flat
from workers.handlers.swe.protected import protected

pytestmark = pytest.mark.anyio
INSTALLED = "psf__requests-2.32.3"
BUILD = """
import os
place = os.path.join(os.environ["PYTHONUSERBASE"], "lib", "python3.11", "site-packages")
os.makedirs(place, exist_ok=True)
open(os.path.join(place, "pytest.py"), "w").write("raise SystemExit(0)")
"""


async def test_the_agent_has_the_images_environment_also_in_a_new_shell(stages: Stages) -> None:
    look = call("execute_bash", json.dumps({"command": 'echo "$(command -v python) $FROM_ACTIVATE"'}))
    leave = call("execute_bash", json.dumps({"command": "exit 0"}))
    ran, _ = await stages.rollout(
        SoftwareEngineering(), ROWS[INSTALLED], [look, leave, look, call("finish", '{"message": ""}')]
    )
    assert ran.trajectory is not None
    first, _, again = [turn.tool_calls[0].result for turn in ran.trajectory.turns[:3]]
    assert first.strip() == "/opt/miniconda3/envs/testbed/bin/python 1"
    assert again.strip().endswith("/opt/miniconda3/envs/testbed/bin/python")


async def test_without_the_install_the_real_fix_is_not_seen(stages: Stages) -> None:
    """The control of its own row: the image holds a copy of the package, which the install replaces."""
    row = ROWS[INSTALLED]
    without = {**row, "eval_script": row["eval_script"].replace("python -m pip install .\n", "")}
    score = await stages.score(SoftwareEngineering(), without, {"patch": row["patch"]})
    assert (score.reward, score.parts["fail_to_pass"]) == (0.0, 0.0), score.note


async def test_the_rows_eval_commands_hold_for_install_and_tests_and_pip_stays_offline(stages: Stages) -> None:
    """The control: without the command nothing has the variable."""
    image = str(IMAGES / flat(INSTALLED))
    box = await stages.provider.create(SandboxSpec(owner="test", image=image, writable=["/testbed"]))
    for commands, lines in ((["export SAID='a b'"], ["SAID=a b"]), ([], [])):
        variables = await of_tests(box, "/testbed", "/opt/miniconda3/envs/testbed/bin/python", commands)
        assert variables.get("SAID") == ("a b" if commands else None)
        await install(box, "/testbed", "env >/tmp/told", variables, 60)
        told = (await box.run(["grep", "-E", "^(SAID|PIP_NO_(INDEX|BUILD_ISOLATION))=", "/tmp/told"])).stdout.decode()
        assert sorted(told.splitlines()) == ["PIP_NO_BUILD_ISOLATION=0", "PIP_NO_INDEX=1", *lines]
    await box.close()


async def test_a_build_cannot_replace_the_test_runner(stages: Stages, patch_of: Callable[..., str]) -> None:
    def change(root: Path) -> None:
        (root / "setup.py").write_text(BUILD + (root / "setup.py").read_text())

    score = await stages.score(SoftwareEngineering(), ROWS[INSTALLED], {"patch": patch_of(change, INSTALLED)})
    assert score.reward == 0.0
    assert "installs modules of the test runner: pytest" in (score.note or "")


async def test_what_the_rows_own_fix_changes_is_not_held_back(stages: Stages, patch_of: Callable[..., str]) -> None:
    """The fix of this row is in a file beside its tests; without its name in `patch` it would be put back."""
    row, path = ROWS[INSTALLED], "tests/helping.py"
    test = row["test_patch"].replace("assert auth is None", "assert auth is None and __import__('tests.helping')")

    def change(root: Path) -> None:
        source = root / "src/requests/utils.py"
        source.write_text(source.read_text().replace("host = ri.netloc.split(splitstr)[0]", "host = ri.hostname"))
        (root / path).write_text("x = 1\n")

    patch = patch_of(change, INSTALLED)
    assert protected([path], ["tests/test_utils.py"]) == [path]
    for fix, reward in ((patch, 1.0), (row["patch"], 0.0)):
        score = await stages.score(SoftwareEngineering(), {**row, "patch": fix, "test_patch": test}, {"patch": patch})
        assert score.reward == reward, score.note
