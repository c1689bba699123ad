"""A build runs the patch's code in EVAL, before the hidden tests are there: what it leaves must earn nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.swe.conftest import QUICK, ROWS, Stages
from workers.handlers.swe import repository
from workers.handlers.swe.family import SoftwareEngineering

pytestmark = pytest.mark.anyio
ROW = {**ROWS[QUICK], "eval_script": "git status\npython build.py\n: '>>>>> Start Test Output'\npytest -rA tests\n"}
SITE = """
import glob, os, sys
place = os.path.join(os.environ["PYTHONUSERBASE"], "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
os.makedirs(place)
"""
EGG = f"""{SITE}
os.makedirs(os.path.join(place, "inner", "_pytest"))
open(os.path.join(place, "easy-install.pth"), "w").write("./inner\\n")
"""
EDITABLE = f"""{SITE}
open(os.path.join(place, "__editable__.x.pth"), "w").write("/testbed/pathspec\\n")
"""
FILTER = r"""
import subprocess
empties = r"s/^\(\s*\)def test_.*:$/&\n\1\treturn/"
subprocess.run(["git", "config", "filter.emptied.smudge", f"sed '{empties}'"], check=True)
open(".git/info/attributes", "w").write("tests/*.py filter=emptied\n")
"""
BEHIND_GIT = """
import subprocess
subprocess.run(["git", "update-index", "--skip-worktree", "tests/util.py"], check=True)
open("tests/util.py", "a").write("raise SystemExit(0)")
"""
PLAIN = """
open("tests/util.py", "a").write("raise SystemExit(0)")
open("tests/conftest.py", "w").write("raise SystemExit(0)")
"""
KEPT = {
    "a directory on the path": (EGG, "installs modules of the test runner: _pytest"),
    "a filter of git's": (FILTER, "1 tests fail: "),
    "a file that git passes over": (BEHIND_GIT, "its build changes protected files, and git's records of them"),
    "files beside the tests": (PLAIN, "1 tests fail: "),
}


@pytest.fixture
def patch_with(patch_of: Callable[..., str]) -> Callable[[str], str]:
    def make(build: str) -> str:
        return patch_of(lambda root: Path(root, "build.py").write_text(build))

    return make


@pytest.mark.parametrize("what", KEPT)
async def test_a_build_earns_nothing_by_what_it_leaves(
    stages: Stages, patch_with: Callable[[str], str], what: str
) -> None:
    build, said = KEPT[what]
    score = await stages.score(SoftwareEngineering(), ROW, {"patch": patch_with(build)})
    assert score.reward == 0.0
    assert said in (score.note or "")


async def test_an_honest_build_is_no_harm(stages: Stages) -> None:
    fix = ROW["patch"] + "diff --git a/build.py b/build.py\nnew file mode 100644\n--- /dev/null\n+++ b/build.py\n"
    build = EDITABLE + "os.makedirs('build/lib')\n"
    added = build.splitlines()
    patch = fix + f"@@ -0,0 +1,{len(added)} @@\n" + "".join(f"+{line}\n" for line in added)
    score = await stages.score(SoftwareEngineering(), ROW, {"patch": patch})
    assert score.reward == 1.0, score.note


async def test_with_gits_settings_a_builds_filter_empties_the_tests(
    stages: Stages, patch_with: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same patch, which fixes nothing, earns 1."""
    real = repository.apply

    async def with_settings(sandbox: Any, task: Any, patch: Any, **_: Any) -> str | None:
        return await real(sandbox, task, patch)

    monkeypatch.setattr(repository, "apply", with_settings)
    score = await stages.score(SoftwareEngineering(), ROW, {"patch": patch_with(FILTER)})
    assert score.reward == 1.0, score.note
