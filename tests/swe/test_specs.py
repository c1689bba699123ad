"""Every version of SWE-bench's repositories goes through the steps that need no image: row, spec, script, parser."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.errors import InvalidTask
from prorl_mq.schema.messages import Limits, Task
from prorl_mq.schema.task_schema import Schema, limits_for, split
from tests.sandbox.conftest import TOOLS_DIR
from tests.swe.logs import LOGS
from workers.handlers.clocks import EvalClock
from workers.handlers.rows import BadRow
from workers.handlers.swe import evaluation, runner, steps
from workers.handlers.swe.evaluation import _Trials
from workers.handlers.swe.family import SoftwareEngineering
from workers.handlers.swe.rows import Hidden, SweTask, hidden_of, task_of
from workers.handlers.swe.spec import Spec, of_script, spec_of, table
from workers.handlers.swe.styles import options_of, parser_of, style_of

ROOT = Path(__file__).parents[2]
PACKAGE = TOOLS_DIR / "swebench-table"
VERSIONS = [(repository, version) for repository, versions in table().items() for version in versions]
NAMES = {
    "django": ("tests/queries/test_q.py", "test_add (queries.test_q.QTests)", "test_sub (queries.test_q.QTests)"),
    "functions": ("sympy/core/tests/test_basic.py", "test_structure", "test_equality"),
    "pytest": ("tests/test_a.py", "tests/test_a.py::test_right[a-1]", "tests/test_a.py::test_other"),
}
OLD_PYTHON = ("3.5", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11")


def patch_of(path: str) -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"


def row_of(repository: str, version: str) -> dict[str, Any]:
    """A row as SWE-bench Verified has them, with lists as JSON text."""
    path, first, second = NAMES[style_of(parser_of(repository))]
    return {
        "instance_id": f"{repository.replace('/', '__')}-1", "repo": repository, "version": version,
        "base_commit": "0" * 40, "problem_statement": "It fails.", "patch": patch_of("source.py"),
        "test_patch": patch_of(path), "FAIL_TO_PASS": json.dumps([first]), "PASS_TO_PASS": json.dumps([second]),
    }  # fmt: skip


def stepped(row: dict[str, Any]) -> None:
    task = Task(task_id="t", data_source="swebench", payload=row)
    parts = split(SoftwareEngineering.schema, task)
    for _, step in steps.STEPS:
        step(*parts)


def read(row: dict[str, Any]) -> tuple[SweTask, Hidden]:
    return task_of(row), hidden_of(row)


def test_the_table_has_all_versions_of_the_twelve_repositories() -> None:
    assert (len(table()), len(VERSIONS)) == (12, 193)
    assert {spec.python for versions in table().values() for spec in versions.values()} == set(OLD_PYTHON)


@pytest.mark.parametrize("repository", table())
def test_a_row_of_every_version_passes_the_steps_without_an_image(repository: str) -> None:
    style = style_of(parser_of(repository))
    for version in table()[repository]:
        row = row_of(repository, version)
        stepped(row)
        spec = spec_of(*read(row))
        assert spec is not None, version
        assert spec.install.startswith("python "), version
        assert ("--settings=test_sqlite" in options_of(style, spec)) == (style == "django" and version != "1.9")


@pytest.fixture(scope="module")
def package() -> Path:
    """The package that the table was made from. CI fetches it."""
    if not PACKAGE.is_dir():
        pytest.skip("the package swebench 4.1.0 is not here: run `make swe-table`")
    return PACKAGE


def test_the_table_is_what_the_package_says(package: Path, tmp_path: Path) -> None:
    made = tmp_path / "specs.json"
    subprocess.run([sys.executable, ROOT / "ops/swe-specs.py", package, made], check=True)
    assert made.read_text() == (ROOT / "workers/handlers/swe/specs.json").read_text()


SCRIPTS = """
import json
from swebench.harness.constants import MAP_REPO_VERSION_TO_SPECS as known
from swebench.harness.test_spec.python import make_eval_script_list_py as made
found = {}
for row in json.load(sys.stdin):
    specs = known[row["repo"]][row["version"]]
    lines = made(row, specs, "testbed", "/testbed", row["base_commit"], row["test_patch"])
    found[row["repo"] + " " + row["version"]] = "\\n".join(["#!/bin/bash", "set -uxo pipefail", *lines]) + "\\n"
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def scripts(package: Path) -> dict[str, str]:
    """The official script of a row of every version."""
    rows = json.dumps([row_of(*version) for version in VERSIONS])
    program = f"import sys; sys.path.insert(0, {str(package)!r})\n{SCRIPTS}"
    done = subprocess.run([sys.executable, "-c", program], input=rows.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


def test_a_row_with_its_own_script_is_evaluated_as_the_table_says(scripts: dict[str, str]) -> None:
    """SWE-bench's newer rows: the same commands, found in the text."""
    for repository, version in VERSIONS:
        row = {**row_of(repository, version), "eval_script": scripts[f"{repository} {version}"]}
        told, known = of_script(row["eval_script"]), table()[repository][version]
        assert list(told.eval_commands) == list(known.eval_commands), (repository, version)
        assert (told.install, told.test_cmd) == (known.install, known.test_cmd), (repository, version)
        stepped(row)


def test_a_script_that_is_none_of_swebenchs_tells_what_it_can() -> None:
    assert of_script("") == of_script("#!/bin/bash\n") == Spec(eval_commands=[])
    text = (
        "cd /testbed\nexport A=1\ngit status\nmake ext\ngit apply -v - <<'E'\nmake evil\nE\n"
        ": '>>>>> Start Test Output'\npytest -rA a\n"
    )
    told = of_script(text)
    assert (list(told.eval_commands), told.install, told.test_cmd) == (["export A=1"], "make ext", "pytest -rA")


@pytest.mark.parametrize("about", LOGS)
def test_parsers_read_what_the_runners_print(about: str) -> None:
    from swebench.harness.log_parsers import PARSER_REGISTRY

    repository = about.split(",", maxsplit=1)[0]
    log = LOGS[about]
    assert PARSER_REGISTRY[parser_of(repository)](log.text, None) == log.says


def test_each_repository_has_a_log() -> None:
    assert {about.split(",", maxsplit=1)[0] for about in LOGS} == set(table())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"image_assets": {"test_patch": [{"path": "a.png"}]}}, "has the field 'image_assets': .*SWE-bench Multimodal"),
        ({"run_script.sh": "exit 0"}, "has the field 'run_script.sh': .*a patch could forge what they print"),
    ],
)
def test_rows_that_cannot_be_run_are_refused_when_they_are_submitted(change: dict[str, Any], told: str) -> None:
    task = Task(task_id="t", data_source="swebench", payload={**row_of("sympy/sympy", "1.12"), **change})
    with pytest.raises(InvalidTask, match=told):
        split(SoftwareEngineering.schema, task)
    with pytest.raises(BadRow):
        task_of(task.payload)
    split(Schema(open_ended=True), task)  # a control: a schema that refuses nothing takes the row


def test_a_column_that_says_nothing_refuses_nothing() -> None:
    nothings: tuple[Any, ...] = (None, "", "{}", "[]", {})
    for nothing in nothings:
        stepped({**row_of("sympy/sympy", "1.12"), "image_assets": nothing})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": "7.7"}, "SWE-bench has no version '7.7' of sympy/sympy.*known are 0.7, "),
        ({"repo": "redis/redis"}, r"another language \(c\)"),
        ({"data_kind": "swebench_multimodal"}, "Multimodal"),
        ({"FAIL_TO_PASS": "[]"}, "names no test"),
        ({"test_patch": "--- a\n+++ b\n"}, "is no patch of git's"),
        ({"log_parser": "parse_log_jest"}, "parse_log_jest"),
        ({"eval_script": "cd /testbed\ngit status\nif make; then\n: '>>>>> Start Test Output'\n"}, "bash cannot read"),
        ({"eval_script": "cd /testbed\n" + "$(" * 20000 + "\n"}, "bash cannot read .*: exit code -"),
        ({"image": "/etc"}, "'docker:///etc' names no image"),
        ({"workdir": "/testbed/../etc"}, "must be an absolute path without"),
        ({"workdir": "/opt/prorl"}, "holds what the sandbox itself needs"),
        ({"FAIL_TO_PASS": '["no such form"]', "test_patch": patch_of("a/test_b.py")}, "makes a reward of 0"),
    ],
)
def test_a_row_that_would_fail_late_fails_here(change: dict[str, Any], told: str) -> None:
    stepped(row_of("sympy/sympy", "1.12"))
    with pytest.raises(Exception, match=told):
        stepped({**row_of("sympy/sympy", "1.12"), **change})


def test_lines_of_progress_are_no_tests() -> None:
    """Two rows of pytest expect `[100%]` to pass, which is a line of its log."""
    assert hidden_of({"PASS_TO_PASS": '["[100%]", "a.py::b[100%]"]'}).pass_to_pass == ["a.py::b[100%]"]


def test_the_runner_is_read_by_python_3_5(tmp_path: Path) -> None:
    """Django up to 2.2. vermin knows syntax and library; a line of a later Python is its control."""
    command = [str(Path(sys.executable).with_name("vermin")), "--target=3.5-", "--no-tips", "--violations"]
    text = Path(runner.__file__).read_text()
    for more, fits in (("", True), ("\nname: str = f'{1}'\n", False)):
        file = tmp_path / "runner.py"
        file.write_text(text + more)
        done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == fits, done.stdout


def test_a_run_of_the_tests_has_swebenchs_half_hour() -> None:
    limits = limits_for(SoftwareEngineering.schema, Limits())
    assert limits.total_ms - Limits().total_ms == limits.eval_ms - Limits().eval_ms, "the rest keeps its time"
    for eval_ms, wall_s in ((limits.eval_ms, 1800.0), (Limits().eval_ms, 480.0)):  # the second: a control
        clock = EvalClock(began=0.0, end=0.0, waited_us=None, repeated=False)
        context = type("", (), {"job": type("", (), {"limits": Limits(eval_ms=eval_ms)}), "repeated": False})
        trials = _Trials(None, SweTask(instance_id="a", repo="a/b"), Hidden(), "", clock.of(context))  # type: ignore[arg-type]
        assert trials._limits().wall_s == pytest.approx(wall_s, abs=1.0)
    assert evaluation.LIMIT_S == 1800.0


def test_a_batchs_own_budget_for_eval_stays() -> None:
    asked = Limits(eval_ms=60_000)
    assert limits_for(SoftwareEngineering.schema, asked) is asked
    assert limits_for(Schema(), Limits()) == Limits()
