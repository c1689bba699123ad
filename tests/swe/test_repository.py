"""What an agent finds in its repository, and what of its work comes out."""

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec
from tests.swe.conftest import IMAGES, QUICK
from workers.handlers.swe import repository
from workers.handlers.swe.images import ImagesMisread, flat, image_of
from workers.handlers.swe.protected import files_of_tests, is_test, may_be_source, protected, steers_tests
from workers.handlers.swe.rows import SweTask

pytestmark = pytest.mark.anyio
TASK = SweTask(instance_id=QUICK)
HISTORY = """
set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
cd /testbed
git checkout -q -b work
git commit -q --allow-empty -m past
base=$(git rev-parse HEAD)
echo THE-FIX > fix; git add fix; git commit -q -m THE-FIX; git tag v-next; git branch later
git remote add origin file:///nowhere; git update-ref refs/remotes/origin/main HEAD
git stash list >/dev/null; echo stashed-THE-FIX >> fix; git stash -q
git reset -q --hard $base
echo THE-FIX-unreferenced | git hash-object -w --stdin >/dev/null
git gc -q
echo $base
"""
SEARCH = """
cd /testbed
git cat-file --batch-all-objects --batch | grep -a -c THE-FIX
grep -r -a -l THE-FIX .git | grep -v '/pack/' | wc -l
git rev-list --all --reflog --objects --count
git fsck --unreachable --no-reflogs --lost-found 2>/dev/null | wc -l
git tag | wc -l; git remote | wc -l; git stash list | wc -l
"""


@pytest.fixture
async def box(provider: SandboxProvider) -> AsyncIterator[Sandbox]:
    made = await provider.create(SandboxSpec(owner="test", image=str(IMAGES / flat(QUICK)), writable=["/testbed"]))
    yield made
    await made.close()


def patched(tmp_path: Path, patch: bytes) -> Path:
    """A copy of the instance's repository with a patch applied."""
    copy = tmp_path / "again"
    shutil.copytree(IMAGES / flat(QUICK) / "testbed", copy, symlinks=True)
    git = ["git", "-c", f"safe.directory={copy}", "-C", str(copy)]
    subprocess.run([*git, "apply", "-"], input=patch, check=True)
    return copy


async def said(box: Sandbox, text: str) -> str:
    done = await repository.script(box, text)
    return done.stdout.decode()


async def test_nothing_after_the_starting_point_can_be_found(box: Sandbox) -> None:
    base = (await said(box, HISTORY)).strip()
    task = SweTask(instance_id=QUICK, base_commit=base)
    assert int((await said(box, SEARCH)).split()[0]) > 0, "the search finds the fix before it is stripped"
    assert await repository.prepare(box, task) == base
    found, files, objects, unreachable, *names = (await said(box, SEARCH)).split()
    assert (found, files, unreachable, names) == ("0", "0", "0", ["0", "0", "0"])
    assert int(objects) > 0
    assert "past" in await said(box, "cd /testbed; git log --format=%s")


async def test_a_patch_carries_binary_files_deletions_and_modes(box: Sandbox, tmp_path: Path) -> None:
    base = await repository.prepare(box, TASK)
    change = (
        "cd /testbed; printf '\\000\\377\\001' > blob.bin; rm LICENSE; chmod +x setup.py; "
        "echo 'x = 1' >> pathspec/util.py; printf '# \\351\\n' >> pathspec/util.py; echo mine > tests/test_mine.py; "
        "git -c user.name=a -c user.email=a@b commit -q -am 'an agent may commit'"
    )
    await said(box, change)
    again = patched(tmp_path, await repository.export(box, TASK, base))
    assert (again / "blob.bin").read_bytes() == b"\0\xff\1"
    assert not (again / "LICENSE").exists()
    assert (again / "setup.py").stat().st_mode & 0o100
    assert (again / "pathspec/util.py").read_bytes().endswith(b"x = 1\n# \xe9\n")
    assert not (again / "tests/test_mine.py").exists()


async def test_tests_come_along_where_they_are_allowed(box: Sandbox) -> None:
    base = await repository.prepare(box, TASK)
    await said(box, "echo mine > /testbed/tests/test_mine.py")
    assert await repository.export(box, TASK, base) == b""
    assert b"test_mine.py" in await repository.export(box, SweTask(instance_id=QUICK, allow_tests=True), base)


async def test_a_repository_that_the_agent_destroyed_gives_an_empty_patch(box: Sandbox) -> None:
    base = await repository.prepare(box, TASK)
    await said(box, "rm -rf /testbed/.git")
    assert await repository.export(box, TASK, base) == b""


async def test_what_a_build_left_behind_is_no_change_and_stays(box: Sandbox) -> None:
    """Git ignores it, and packages need it: metadata of a package that is installed from its repository."""
    await said(box, "cd /testbed; echo '*.egg-info' > .gitignore; mkdir a.egg-info; echo name > a.egg-info/PKG-INFO")
    await repository.prepare(box, TASK)
    start = await repository.snapshot(box, TASK)
    await said(box, "cd /testbed; mkdir b.egg-info; echo evil > b.egg-info/entry_points.txt")
    changed = await repository.changed(box, TASK, start, await repository.snapshot(box, TASK))
    assert changed == ["b.egg-info/entry_points.txt"]
    await repository.put_back(box, TASK, start, changed)
    assert await said(box, "cd /testbed; cat a.egg-info/PKG-INFO; ls -d *.egg-info/*") == (
        "name\na.egg-info/PKG-INFO\n"
    )


SMITH = """
set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
cd /testbed
echo THE-FIX > source.py; echo THE-TEST > tests/test_hidden.py; git add -A; git commit -q -m whole
git checkout -q -b broken__row.1
echo a bug > source.py; git commit -q -a -m bug
git rm -q tests/test_hidden.py; git commit -q -m 'tests removed'
git checkout -q main
"""


async def test_a_bug_that_was_put_in_has_no_history_to_take_out_again(box: Sandbox) -> None:
    """SWE-smith: a branch of the image holds the bug, and its last commit hides the tests."""
    await said(box, SMITH)
    task = SweTask(instance_id="broken__row.1", data_kind="swesmith")
    assert await repository.removed_tests(box, task, ["tests/test_hidden.py"]) == {
        "tests/test_hidden.py": b"THE-TEST\n"
    }
    await repository.prepare(box, task)
    found, files, *_ = (await said(box, SEARCH)).split()
    assert (found, files) == ("0", "0")
    assert await said(box, "cd /testbed; cat source.py; ls tests/test_hidden.py; git log --format=%s") == (
        "a bug\nenvironment\n"
    )


async def test_a_row_whose_image_lacks_its_bug_is_nobodys_task(box: Sandbox) -> None:
    with pytest.raises(repository.BranchMissing, match=r"no branch other__row.1.*sandboxes have no network.*git fetch"):
        await repository.prepare(box, SweTask(instance_id="other__row.1", data_kind="swesmith"))
    assert repository.BranchMissing.retryable is False, "no second attempt has the branch either"


def test_images_are_the_operators_or_those_that_data_sets_publish(tmp_path: Path) -> None:
    name = "django__django-11099"
    assert image_of(SweTask(instance_id=name), {}) == "docker://xingyaoww/sweb.eval.x86_64.django_s_django-11099"
    other = image_of(SweTask(instance_id=name), {"EVAL_DOCKER_IMAGE_PREFIX": "mirror.local/swe/"})
    assert other == "docker://mirror.local/swe/sweb.eval.x86_64.django_s_django-11099"
    assert image_of(SweTask(docker_image="/etc"), {}) == "docker:///etc", "a row names no directory of the host"
    mapping = tmp_path / "images.json"
    mapping.write_text(
        '{"django__*": "/images/{name}", "sympy__*": "docker://swebench/sweb.eval.x86_64.{name_1776}:latest",'
        ' "c__*": "docker://{nmae}", "*": "docker://{instance_id}"}'
    )
    mapped = {"PRORL_SWE_IMAGES": str(mapping)}
    assert image_of(SweTask(instance_id=name), mapped) == "/images/django_s_django-11099"
    assert image_of(SweTask(instance_id="a__b-1"), mapped) == "docker://a__b-1"
    official = image_of(SweTask(instance_id="sympy__sympy-20590"), mapped)
    assert official == "docker://swebench/sweb.eval.x86_64.sympy_1776_sympy-20590:latest"
    with pytest.raises(ImagesMisread, match=r"\{nmae\}.* may hold \{instance_id\}, \{name\}, \{name_1776\} alone"):
        image_of(SweTask(instance_id="c__d-1"), mapped)


@pytest.mark.parametrize(
    ("path", "is_protected"),
    [
        ("tests/test_a.py", True), ("tests/data/x.txt", True), ("conftest.py", True), ("tests/conftest.py", True),
        ("setup.cfg", True), ("src/pkg/conftest.py", False), ("src/pkg/setup.cfg", False), (".venv/bin/python", True),
        ("pytest.py", True), ("src/json.py", True), ("re/__init__.py", True),
        ("x.egg-info/entry_points.txt", True), ("evil.pth", True), ("tests", True),
        ("src/pkg/json.py", False), ("src/pkg/tests.py", False), ("src/pkg/core.py", False), ("docs/a.md", False),
    ],
)  # fmt: skip
def test_files_that_steer_tests_are_protected_and_sources_are_not(path: str, is_protected: bool) -> None:
    assert (protected([path], ["tests/test_a.py"]) == [path]) == is_protected


@pytest.mark.parametrize(
    ("hidden", "own", "source", "tests"),
    [
        ("testing/test_assertion.py", {"_pytest", "pytest"}, "src/_pytest/assertion/rewrite.py", "testing/conftest.py"),
        ("tests/test_tags.py", {"packaging"}, "src/packaging/tags.py", "tests/test_tags.py"),
        ("sympy/testing/tests/test_code.py", set(), "sympy/testing/runtests.py", "sympy/testing/tests/data.py"),
        ("numpy/testing/tests/test_utils.py", set(), "numpy/testing/_private/utils.py", "numpy/testing/tests/x.py"),
        ("astropy/tests/tests/test_runner.py", set(), "astropy/tests_of.py", "astropy/tests/tests/test_runner.py"),
        ("xarray/tests/test_testing.py", set(), "xarray/testing/assertions.py", "xarray/tests/__init__.py"),
        ("lib/matplotlib/tests/test_a.py", set(), "lib/matplotlib/testing/compare.py", "lib/matplotlib/tests/x.png"),
        ("new/test_a.py", set(), "new/b.py", "new"),
    ],
)
def test_a_package_that_is_about_testing_is_source(hidden: str, own: set[str], source: str, tests: str) -> None:
    assert protected([source, tests], [hidden], own) == [tests]
    assert not is_test(source)


async def test_a_module_beside_tests_that_its_package_imports_is_source(box: Sandbox) -> None:
    """`astropy/tests/runner.py`."""
    await repository.prepare(box, TASK)
    await said(
        box,
        "cd /testbed; mkdir pathspec/tests; touch pathspec/tests/__init__.py pathspec/tests/runner.py "
        "pathspec/tests/helper.py; echo 'from .tests.runner import run' >> pathspec/__init__.py",
    )
    start = await repository.snapshot(box, TASK)
    paths = ["pathspec/tests/runner.py", "pathspec/tests/helper.py"]
    assert all(may_be_source(path) for path in paths)
    assert [await repository.is_imported(box, TASK, start, path) for path in paths] == [True, False]
    assert {"pathspec", "tests"} <= await repository.modules(box, TASK, start)


@pytest.mark.parametrize(
    ("name", "after", "steers"),
    [
        ("setup.cfg", "[metadata]\nname = b\n[tool:pytest]\naddopts = -q\n", False),
        ("setup.cfg", "[metadata]\nname = a\n[tool:pytest]\naddopts = --collect-only\n", True),
        ("setup.cfg", "[metadata]\nname = a\x0c[pytest]\naddopts = -q\n[tool:pytest]\naddopts = -q\n", True),
        ("setup.cfg", "\udcff", True),
        ("pyproject.toml", "tool.other = 1", False),
        ("pyproject.toml", "[tool.'pytest'.ini_options]\naddopts = '-q'", True),
        ("pyproject.toml", "no toml", True),
    ],
)
def test_shared_settings_are_put_back_where_the_runner_reads_them(name: str, after: str, steers: bool) -> None:
    before = b"" if name.endswith("toml") else b"[metadata]\nname = a\n[tool:pytest]\naddopts = -q\n"
    assert steers_tests(name, before, after.encode("utf-8", "surrogateescape")) is steers


def test_hidden_tests_are_those_of_the_patch_and_of_the_names() -> None:
    patch = "diff --git a/tests/test_a.py b/tests/test_a.py\n"
    assert files_of_tests(patch, ["b/test_b.py::test_c[1]", "plain name"]) == ["b/test_b.py", "tests/test_a.py"]
    assert [is_test(path) for path in ("tests/x.py", "a/test_b.py", "src/jinja2/tests.py")] == [True, True, False]


ALL_THE_SAME = (
    ("a lock of a git that was stopped", "touch .git/index.lock"),
    ("a file that nobody may read", "echo x > secret; chmod 0 secret"),
    ("a repository without a commit", "mkdir inner; cd inner; git init -q; echo x > x"),
    ("git's own settings", "git config diff.noprefix true; git config diff.context 0; git config color.ui always"),
    ("a work tree elsewhere", "git config core.worktree /tmp"),
    ("a bare repository", "git config core.bare true"),
    ("files that git passes over", "git update-index --assume-unchanged pathspec/util.py"),
    ("files that are not checked out", "git update-index --skip-worktree pathspec/util.py"),
    ("names that are no text", "mkdir tests/x; cd tests/x; touch $'\\377' $'a\\nb' ':(top)' ./-rf"),
    ("more tests than a command line takes", f"mkdir tests/x; cd tests/x; seq -f {'a' * 200}%g 9000 | xargs touch"),
)


@pytest.mark.parametrize("done", [script for _, script in ALL_THE_SAME], ids=[about for about, _ in ALL_THE_SAME])
async def test_what_else_lies_in_a_repository_does_not_cost_the_work(box: Sandbox, tmp_path: Path, done: str) -> None:
    base = await repository.prepare(box, TASK)
    await box.run(["bash", "-c", f"cd /testbed; echo 'x = 1' >> pathspec/util.py; {done}"])
    again = patched(tmp_path, await repository.export(box, TASK, base))
    assert (again / "pathspec/util.py").read_text().endswith("x = 1\n")
    assert not (again / "tests/x").exists()


async def test_a_protected_file_whose_name_is_no_text_is_put_back(box: Sandbox) -> None:
    await repository.prepare(box, TASK)
    start = await repository.snapshot(box, TASK)
    await box.run(["bash", "-c", "cd /testbed; mkdir tests/x; touch $'tests/x/\\377'; rm tests/__init__.py"])
    changed = await repository.changed(box, TASK, start, await repository.snapshot(box, TASK))
    assert changed == ["tests/__init__.py", "tests/x/\udcff"]
    await repository.put_back(box, TASK, start, changed)
    assert await repository.snapshot(box, TASK) == start
