"""The steps by which CONTRIBUTING adds a verb are followed as they are printed, in a copy of the sources."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("prorl_mq", "tests")
LINKED = ("api", "bench", "docs", "examples", "ops", "pyproject.toml", "sandbox", "slurm", "workers")
TESTS = (
    "tests/verbs/test_annotate.py",
    "tests/verbs/test_fields.py",
    "tests/verbs/test_lost_replies.py::test_every_verb_has_a_case",
    "tests/verbs/test_lost_replies.py::test_the_effect_happens_once_and_the_repeat_is_answered_so[annotate]",
    "tests/unit/store/test_scripts.py",
    "tests/simulation/test_mutants.py::test_of_every_check_it_is_known_what_finds_its_removal",
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def insert(file: Path, before: str, text: str) -> None:
    there, found, rest = file.read_text().partition(before)
    assert found, f"{file} has no {before!r}"
    file.write_text(there + text + found + rest)


def append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


def follow(root: Path, *, leave_out: str = "") -> None:
    """Does each step; the one whose heading has `leave_out` is left out."""
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a verb")[2].partition("\n## ")[0]
    steps = dict(re.findall(r"^\*\*\d\. The (\w+).*?```\w+\n(.*?)```", page, re.DOTALL | re.MULTILINE))
    assert list(steps) == ["script", "method", "field", "test", "lost", "checks"]
    method = "".join(f"    {line}\n" for line in steps["method"].splitlines())
    places: dict[str, Callable[[str], object]] = {
        "script": (root / "prorl_mq/store/lua/annotate.lua").write_text,
        "method": lambda _: insert(root / "prorl_mq/store/verbs/groups.py", "    async def close(", f"{method}\n"),
        "field": lambda text: insert(root / "prorl_mq/store/layout/fields.py", "    **{name: _field", text),
        "test": (root / "tests/verbs/test_annotate.py").write_text,
        "lost": lambda text: append(root / "tests/verbs/test_annotate.py", f"\n\n{text}"),
        "checks": lambda text: insert(root / "tests/simulation/found.toml", '"fence: call', text),
    }
    for name, text in steps.items():
        if name != leave_out:
            places[name](text)


def run_tests(root: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS]
    return subprocess.run(command, check=False, cwd=root, env=environ, capture_output=True, text=True, timeout=240)


def test_a_verb_that_is_added_by_the_steps_passes_the_tests_of_verbs(copy: Path) -> None:
    follow(copy)
    done = run_tests(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("step", ["field", "lost", "checks"])
def test_a_step_that_is_left_out_is_missed(step: str, copy: Path) -> None:
    """The control: the tests of verbs want each of them."""
    follow(copy, leave_out=step)
    assert run_tests(copy).returncode == 1
