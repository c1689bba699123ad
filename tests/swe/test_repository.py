"""What an agent finds in its repository, and what of its work comes out."""

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec
from tests.swe.conftest import IMAGES, QUICK
from workers.handlers.swe import repository
from workers.handlers.swe.images import flat, image_of
from workers.handlers.swe.protected import files_of_tests, is_test, protected
from workers.handlers.swe.rows import Task

pytestmark = pytest.mark.anyio
TASK = Task(instance_id=QUICK)
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


def patched(tmp_path: Path, patch: str) -> Path:
    """A copy of the instance's repository with a patch applied."""
    copy = tmp_path / "again"
    shutil.copytree(IMAGES / flat(QUICK) / "testbed", copy, symlinks=True)
    git = ["git", "-c", f"safe.directory={copy}", "-C", str(copy)]
    subprocess.run([*git, "apply", "-"], input=patch.encode(), check=True)
    return copy


async def said(box: Sandbox, text: str) -> str:
    done = await repository.script(box, text)
    return done.stdout.decode()


async def test_nothing_after_the_starting_point_can_be_found(box: Sandbox) -> None:
    base = (await said(box, HISTORY)).strip()
    task = Task(instance_id=QUICK, base_commit=base)
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
        "echo 'x = 1' >> pathspec/util.py; echo mine > tests/test_mine.py; "
        "git -c user.name=a -c user.email=a@b commit -q -am 'an agent may commit'"
    )
    await said(box, change)
    again = patched(tmp_path, await repository.export(box, TASK, base))
    assert (again / "blob.bin").read_bytes() == b"\0\xff\1"
    assert not (again / "LICENSE").exists()
    assert (again / "setup.py").stat().st_mode & 0o100
    assert (again / "pathspec/util.py").read_text().endswith("x = 1\n")
    assert not (again / "tests/test_mine.py").exists()


async def test_tests_come_along_where_they_are_allowed(box: Sandbox) -> None:
    base = await repository.prepare(box, TASK)
    await said(box, "echo mine > /testbed/tests/test_mine.py")
    assert await repository.export(box, TASK, base) == ""
    assert "test_mine.py" in await repository.export(box, Task(instance_id=QUICK, allow_tests=True), base)


async def test_a_repository_that_the_agent_destroyed_gives_an_empty_patch(box: Sandbox) -> None:
    base = await repository.prepare(box, TASK)
    await said(box, "rm -rf /testbed/.git")
    assert await repository.export(box, TASK, base) == ""


def test_images_are_the_operators_or_those_that_data_sets_publish(tmp_path: Path) -> None:
    name = "django__django-11099"
    assert image_of(Task(instance_id=name), {}) == "docker://xingyaoww/sweb.eval.x86_64.django_s_django-11099"
    other = image_of(Task(instance_id=name), {"EVAL_DOCKER_IMAGE_PREFIX": "mirror.local/swe/"})
    assert other == "docker://mirror.local/swe/sweb.eval.x86_64.django_s_django-11099"
    assert image_of(Task(docker_image="/etc"), {}) == "docker:///etc", "a row names no directory of the host"
    mapping = tmp_path / "images.json"
    mapping.write_text('{"django__*": "/images/{name}", "*": "docker://{instance_id}"}')
    mapped = {"PRORL_SWE_IMAGES": str(mapping)}
    assert image_of(Task(instance_id=name), mapped) == "/images/django_s_django-11099"
    assert image_of(Task(instance_id="a__b-1"), mapped) == "docker://a__b-1"


@pytest.mark.parametrize(
    ("path", "is_protected"),
    [
        ("tests/test_a.py", True), ("tests/data/x.txt", True), ("conftest.py", True), ("src/pkg/conftest.py", True),
        ("setup.cfg", True), ("pytest.py", True), ("src/json.py", True), ("re/__init__.py", True),
        ("x.egg-info/entry_points.txt", True), ("evil.pth", True), ("tests", True),
        ("src/pkg/json.py", False), ("src/pkg/tests.py", False), ("src/pkg/core.py", False), ("docs/a.md", False),
    ],
)  # fmt: skip
def test_files_that_steer_tests_are_protected_and_sources_are_not(path: str, is_protected: bool) -> None:
    assert (protected([path], ["tests/test_a.py"]) == [path]) == is_protected


def test_hidden_tests_are_those_of_the_patch_and_of_the_names() -> None:
    patch = "diff --git a/tests/test_a.py b/tests/test_a.py\n"
    assert files_of_tests(patch, ["b/test_b.py::test_c[1]", "plain name"]) == ["b/test_b.py", "tests/test_a.py"]
    assert [is_test(path) for path in ("tests/x.py", "a/test_b.py", "src/jinja2/tests.py")] == [True, True, False]
