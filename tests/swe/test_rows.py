"""Rows of other makers: R2E-Gym's, whose images hold the tests, and NeMo Gym's, which pack a row into a column."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.errors import InvalidTask
from prorl_mq.schema.messages import Task
from prorl_mq.schema.task_schema import split
from tests.agent.chat import call
from tests.swe.conftest import IMAGES, QUICK, ROWS, Stages
from workers.handlers.rows import BadRow
from workers.handlers.swe.family import SoftwareEngineering
from workers.handlers.swe.images import NoImage, flat, image_of
from workers.handlers.swe.rows import task_of

pytestmark = pytest.mark.anyio
ROW = ROWS[QUICK]
NAMES = [*ROW["FAIL_TO_PASS"], *ROW["PASS_TO_PASS"]]
R2E_IMAGE = "namanjain12/pathspec_final:0"
R2E = {
    "docker_image": R2E_IMAGE,
    "repo_name": "pathspec",
    "problem_statement": ROW["problem_statement"],
    "expected_output_json": json.dumps(
        {"": "PASSED"} | {f"\x1b[1m{'.'.join(name.split('::')[1:])}\x1b[0m": "PASSED" for name in NAMES}
    ),
    "parsed_commit_content": json.dumps({"new_commit": "the fix"}),
}
PACKED = {
    "instance_id": QUICK,
    "base_commit": ROW["base_commit"],
    "dataset_name": "princeton-nlp/SWE-bench_Verified",
    "split": "test",
    "problem_statement": ROW["problem_statement"],
    "instance_dict": json.dumps({**ROW, "hints_text": None}),
}


@pytest.fixture
def r2e_image(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The instance's image as R2E-Gym makes them: the tests of the fixed version lie apart, and in the repository."""
    with tempfile.TemporaryDirectory(dir=images, prefix=".r2e-") as name:  # there, for hard links
        Path(name).chmod(0o755)
        image = Path(name) / "image"
        subprocess.run(["cp", "-al", str(IMAGES / flat(QUICK)), str(image)], check=True)
        fixed = tmp_path / "fixed"
        shutil.copytree(image / "testbed", fixed, symlinks=True)
        git = ["git", "-c", f"safe.directory={fixed}", "-C", str(fixed)]
        subprocess.run([*git, "apply", "-"], input=ROW["test_patch"].encode(), check=True)
        for place in (image / "r2e_tests", image / "testbed" / "r2e_tests"):
            shutil.copytree(fixed / "tests", place)
            subprocess.run(["chmod", "-R", "a+rX", str(place)], check=True)
        mapping = Path(name) / "images.json"
        mapping.write_text(json.dumps({"*": str(image)}))
        monkeypatch.setenv("PRORL_SWE_IMAGES", str(mapping))
        yield image


async def test_a_row_of_r2e_gym_is_scored_by_what_it_expects_of_each_test(stages: Stages, r2e_image: Path) -> None:
    family = SoftwareEngineering()
    right = await stages.score(family, R2E, {"patch": ROW["patch"]})
    assert (right.reward, dict(right.parts)) == (1.0, {"expected": 1.0}), right.note
    nothing = "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n@@ -0,0 +1 @@\n+nothing\n"
    wrong = await stages.score(family, R2E, {"patch": nothing})
    assert wrong.reward == 0.0
    assert ROW["FAIL_TO_PASS"][0].rpartition("::")[2] in (wrong.note or "")


async def test_an_agent_finds_no_hidden_test_of_r2e_gym(stages: Stages, r2e_image: Path) -> None:
    search = call("execute_bash", json.dumps({"command": "find /testbed /r2e_tests -path '*r2e_tests/*' | wc -l"}))
    ran, _ = await stages.rollout(SoftwareEngineering(), R2E, [search, call("finish", '{"message": ""}')])
    assert ran.trajectory.turns[0].tool_calls[0].result == "0"
    assert list((r2e_image / "r2e_tests").glob("test_*.py")), "the image itself has them"


async def test_a_packed_row_is_scored_as_what_is_in_it(stages: Stages) -> None:
    opened, sealed = split(SoftwareEngineering.schema, Task(task_id="t", data_source="swebench", payload=PACKED))
    assert list(sealed) == ["instance_dict"]
    assert "test_patch" not in str(opened)
    right = await stages.score(SoftwareEngineering(), PACKED, {"patch": ROW["patch"]})
    assert (right.reward, dict(right.parts)) == (1.0, {"fail_to_pass": 1.0, "pass_to_pass": 1.0}), right.note


def test_a_row_that_is_packed_twice_is_refused_and_tells_nothing() -> None:
    """Whole rows of NeMo Gym: the answer lies within, so nothing of them is taken for open."""
    task = Task(task_id="t", data_source="swebench", payload={"responses_create_params": {"metadata": PACKED}})
    with pytest.raises(InvalidTask, match="lacks the field 'problem_statement'"):
        split(SoftwareEngineering.schema, task)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"data_kind": "nemotron"}, "the row does not fit: Invalid enum value 'nemotron' - at `\\$.data_kind`"),
        ({"dataset_name": "nv-internal-1"}, "by scripts that the row brings"),
        ({"dataset_name": "ScaleAI/SWE-bench_Pro"}, "a patch could forge what they print"),
    ],
)
def test_a_row_that_cannot_be_run_says_why(change: dict[str, Any], told: str) -> None:
    with pytest.raises(BadRow, match=f"^{QUICK}: .*{told}"):
        task_of({**PACKED, **change})


async def test_scripts_that_a_packed_row_brings_are_never_run(stages: Stages) -> None:
    row = {**PACKED, "instance_dict": json.dumps({"run_script.sh": "exit 0", "parsing_script.py": "print(1)"})}
    with pytest.raises(BadRow, match="such rows are not scored here"):
        await stages.score(SoftwareEngineering(), row, {"patch": ROW["patch"]})


def test_a_packed_row_of_r2e_gym_needs_the_operators_word_for_its_image() -> None:
    task = task_of({**PACKED, "dataset_name": "R2E-Gym/R2E-Gym-Subset"})
    assert task.kind == "r2egym"
    with pytest.raises(NoImage, match="names no image; PRORL_SWE_IMAGES can"):
        image_of(task, {})
