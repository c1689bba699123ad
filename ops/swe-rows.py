# ruff: noqa: INP001  (a program, not a module)
"""Makes rows of SWE-bench's form out of releases that follow one another, as the package registry has them.

    python ops/swe-rows.py STATE_DIR RECIPES.toml OUT.jsonl [NAME ...]

A recipe names a repository of SWE-bench, a version of its table, a release that has a bug, the next one, and which
files of the difference are the fix and which are its tests. The image is built (`ops/swe-images.py`), the version's own
command runs the tests in it with the test patch alone and with the fix, and SWE-bench's parser for the repository reads
both logs: what turned from failed to passed is FAIL_TO_PASS. Of what passed both times at most 60 are kept.
"""

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

from workers.handlers.swe.spec import table
from workers.handlers.swe.styles import parser_of

KEPT = 60
LIMIT_S = 1800.0
SYMPY = "import sympy, sys; sympy.test(*sys.argv[1:], verbose=True, subprocess=False, colors=False)"
PASSED = {"PASSED", "XFAIL"}


def main() -> None:
    """Writes the rows of all recipes; those not named are kept as they are in OUT."""
    state, out = Path(sys.argv[1]).resolve(), Path(sys.argv[3])
    recipes = tomllib.loads(Path(sys.argv[2]).read_text())
    lines = out.read_text().splitlines() if out.exists() else []
    rows = {row["task_id"]: row for row in map(json.loads, lines)}
    for name in sys.argv[4:] or recipes:
        payload = row_of(state, recipes[name])
        rows = {other: row for other, row in rows.items() if other != payload["instance_id"]}
        rows[payload["instance_id"]] = {
            "task_id": payload["instance_id"],
            "data_source": "swebench",
            "payload": payload,
        }
        print(name, len(payload["FAIL_TO_PASS"]), len(payload["PASS_TO_PASS"]))
        out.write_text("".join(json.dumps(rows[key]) + "\n" for key in sorted(rows)))


def row_of(state: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    images = load(Path(__file__).with_name("swe-images.py"))
    environment = recipe["environment"]
    package, release = environment["sdist"].split("==")
    project = recipe["repo"].replace("/", "__").lower()
    row = {
        "instance_id": f"{project}-{release}",
        "repo": recipe["repo"],
        "version": recipe["version"],
        "base_commit": "",
        "problem_statement": recipe["problem"].strip(),
        "environment": environment,
    }
    shared = state / "images" / "swe"
    with tempfile.TemporaryDirectory(dir=shared) as name:  # on its file system: images are hard links
        work = Path(name)
        image = work / "image"
        images.build(image, state / "images" / "base", environment, images.packages_of(row), beside=shared)
        testbed = image / "testbed"
        row["base_commit"] = git(testbed, "rev-parse", "HEAD").strip()
        later = {**environment, "sdist": f"{package}=={recipe['next']}", "sha256": recipe["next_sha256"]}
        (work / "later").mkdir()
        after = images.unpacked(work / "later", later)
        test_patch, patch = (patch_of(testbed, after, recipe, part) for part in ("tests", "fix"))
        before_fix = statuses(image, row, recipe, [test_patch])
        with_fix = statuses(image, row, recipe, [test_patch, patch])
    fixed = sorted(test for test, ok in with_fix.items() if ok and not before_fix.get(test))
    kept = sorted(test for test, ok in with_fix.items() if ok and before_fix.get(test))
    if not fixed:
        sys.exit(f"{row['instance_id']}: no test turns from failed to passed: {with_fix}")
    return {**row, "patch": patch, "test_patch": test_patch, "FAIL_TO_PASS": fixed, "PASS_TO_PASS": kept[:KEPT]}


def patch_of(testbed: Path, after: Path, recipe: dict[str, Any], part: str) -> str:
    """The difference in the files of a recipe. `tests_text` has tests of our own where releases bring none."""
    for path in recipe.get(part, ()):
        (testbed / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(after / path, testbed / path)
    for path, text in recipe.get("tests_text", {}).items() if part == "tests" else ():
        (testbed / path).write_text(text)
    git(testbed, "add", "-A", "-f")
    patch = git(testbed, "diff", "--cached", "--no-renames", "HEAD")
    git(testbed, "reset", "-q", "--hard")
    return patch


def statuses(image: Path, row: dict[str, Any], recipe: dict[str, Any], patches: list[str]) -> dict[str, bool]:
    """Whether each test passed, by the version's own command and the repository's own parser."""
    from swebench.harness.log_parsers import PARSER_REGISTRY

    command = table()[row["repo"]][row["version"]].test_cmd
    if command.startswith("tox"):
        command = "pytest -rA"  # what tox would start; the environment is ready
    if "bin/test" in command:
        command = f"python -c {shlex.quote(SYMPY)}"  # what bin/test would do; releases lack it
    files = [*recipe.get("tests", ()), *recipe.get("tests_text", {})]
    if row["repo"] == "django/django":
        files = [path.removeprefix("tests/").removesuffix(".py").replace("/", ".") for path in files]
    python = "python -m " if command.startswith("pytest") else ""
    for patch in patches:
        subprocess.run(["git", "-C", str(image / "testbed"), "apply", "-"], input=patch.encode(), check=True)
    script = f"source /opt/miniconda3/bin/activate testbed; cd /testbed; {python}{command} {shlex.join(files)}"
    options = "--dev /dev --proc /proc --tmpfs /tmp --unshare-net --clearenv --die-with-parent"
    given = "--setenv PATH /usr/bin:/bin --setenv HOME /tmp --setenv LC_ALL C.UTF-8"
    done = subprocess.run(
        ["bwrap", "--bind", str(image), "/", *options.split(), *given.split(), "bash", "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    git(image / "testbed", "reset", "-q", "--hard")
    git(image / "testbed", "clean", "-q", "-fdx")
    log = done.stdout.decode(errors="replace")
    return {test: status in PASSED for test, status in PARSER_REGISTRY[parser_of(row["repo"])](log, None).items()}


def git(directory: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(directory), *words], check=True, capture_output=True)
    return done.stdout.decode()


def load(file: Path) -> ModuleType:
    """The builder of images, whose name is no module's."""
    spec = importlib.util.spec_from_file_location("swe_images", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
