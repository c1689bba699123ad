"""The repository in a sandbox: made ready for an agent, and read out again.

An agent gets the history that leads to its starting point and nothing else. It is cloned over git's own transport,
which carries what can be reached from one commit: no later commit, remote, reflog or loose object comes along, and of
the tags those in that history, from which builds read their version.
Where a bug was put in by a commit of its own (SWE-smith), the history before is the fix: there it gets none.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from prorl_mq.schema.faults import Cause
from sandbox.errors import SandboxError
from sandbox.protocol import ProcessResult, Sandbox
from workers.handlers.swe.protected import is_test
from workers.handlers.swe.rows import R2E_TESTS, SweTask

GIT_S = 300.0
MAX_PATCH_BYTES = 4 << 20
MAX_LIST_BYTES = 16 << 20
_NO_BRANCH = 4  # exit code of `_PREPARE`
_SETTINGS = (
    "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_TERMINAL_PROMPT=0 "
    "GIT_AUTHOR_NAME=task GIT_AUTHOR_EMAIL=task@localhost GIT_AUTHOR_DATE=2000-01-01T00:00:00Z "
    "GIT_COMMITTER_NAME=task GIT_COMMITTER_EMAIL=task@localhost GIT_COMMITTER_DATE=2000-01-01T00:00:00Z\n"
)
_PREPARE = """
set -eu
cd "$1"
fresh=$(mktemp -d)
if git rev-parse -q --verify HEAD >/dev/null 2>&1; then
  start=HEAD
  for name in "$2" "$3" "origin/$3"; do
    if [ -n "$name" ] && git rev-parse -q --verify "$name^{commit}" >/dev/null; then start=$name; break; fi
  done
  [ "$start" = HEAD ] || [ "$start" = "$2" ] || git checkout -q -f "$start" --
  [ "$4" = all ] || [ "$start" != HEAD ] || exit 4
fi
if [ "$4" = all ] && [ -n "${start:-}" ]; then
  git update-ref refs/heads/prorl-start "$(git rev-parse "$start^{commit}")"
  git clone -q --no-local --single-branch --branch prorl-start --no-checkout "file://$PWD" "$fresh/clone"
  rm -rf .git
  mv "$fresh/clone/.git" .git
  git remote remove origin
  git branch -q -m main
  git reset -q || true
else
  rm -rf .git
  git init -q -b main
fi
rm -rf "$fresh" .git/logs .git/FETCH_HEAD .git/ORIG_HEAD
git add -A
git diff --cached --quiet HEAD 2>/dev/null || git -c gc.auto=0 commit -q --no-verify -m environment
rm -rf .git/logs
git config core.logAllRefUpdates false
git rev-parse HEAD
"""
_HIDE = """
rm -rf "$1"
[ ! -d "$2" ] || find "$2" -mindepth 1 -delete
"""
# An index of its own: the agent's may be locked, or pass over files. What cannot be added (no permission, a repository
# without a commit) does not cost the rest, and git's plumbing knows none of the settings that change a patch's form.
_OWN_INDEX = """
set -eu
cd "$1"
export GIT_DIR="$1/.git" GIT_WORK_TREE="$1" GIT_INDEX_FILE="$1/.git/prorl-index" GIT_LITERAL_PATHSPECS=1
"""
_EXPORT = f"""{_OWN_INDEX}
rm -rf "$GIT_INDEX_FILE" "$GIT_INDEX_FILE.lock"
git read-tree "$2"
git add -A --ignore-errors 2>/dev/null || true
git diff-index --cached --name-only -z --no-renames "$2" --
"""
_DIFF = f"""{_OWN_INDEX}
xargs -0 -r git reset -q "$2" --
git diff-index --cached -p --binary --full-index --no-color --no-ext-diff --no-textconv --no-renames "$2" --
"""
_PUT_BACK = """
cd "$1"
xargs -0 -r sh -ec 'for path; do
  rm -rf -- "$path"
  if git cat-file -e "$0:$path" 2>/dev/null; then git checkout -q "$0" -- ":(literal)$path"
  else git rm -q -f --cached --ignore-unmatch -- ":(literal)$path"; fi
done' "$2"
"""

# Every file, link and other thing of a directory but git's own, with a digest. It asks nobody that a build could have
# changed: Python is the image's, and looks at its own library alone.
_CONTENTS = """
import hashlib, os, stat, sys
root = os.fsencode(sys.argv[1])
def mark(path):
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        return "link " + hashlib.sha256(os.readlink(path)).hexdigest()
    if not stat.S_ISREG(found.st_mode):
        return "other %o" % found.st_mode
    made = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            made.update(piece)
    return "file %o " % (found.st_mode & 0o100) + made.hexdigest()
for place, directories, files in os.walk(root):
    names = files + [name for name in directories if os.path.islink(os.path.join(place, name))]
    if place == root:
        directories[:] = [name for name in directories if name != b".git"]
        names = [name for name in names if name != b".git"]
    for name in names:
        path = os.path.join(place, name)
        try:
            told = mark(path)
        except OSError as error:
            told = "unread %s" % error.errno
        sys.stdout.buffer.write(os.path.relpath(path, root) + b"\\0" + told.encode() + b"\\0")
"""
# A new repository's, with the same files; without any, git would take line endings as they are.
_OTHER_SETTINGS = 'export GIT_DIR=$(mktemp -d)/git GIT_WORK_TREE="$1"; git init -q && '


class NotARepository(Exception):
    """An image whose repository cannot be made ready: the row or the image is wrong."""

    cause = Cause.ROW


class BranchMissing(NotARepository):
    """An image of SWE-smith without the branch that holds the row's bug; trying again does not help."""

    retryable = False


async def prepare(sandbox: Sandbox, task: SweTask) -> str:
    """Strips what an agent must not see. The commit that its patch will be a difference to."""
    history = "none" if task.kind == "swesmith" else "all"
    done = await script(sandbox, _PREPARE, task.workdir, task.base_commit, task.instance_id, history)
    commit = done.stdout.decode().strip()
    if done.exit_code == _NO_BRANCH:
        raise BranchMissing(
            f"{task.instance_id}: {task.workdir} of its image has no branch {task.instance_id}, which holds the bug. "
            "SWE-smith's own images have none and fetch it, and sandboxes have no network: make an image with "
            f"`git fetch origin {task.instance_id}:{task.instance_id}` in its repository, and map the row to it "
            "in PRORL_SWE_IMAGES"
        )
    if done.exit_code != 0 or not commit:
        raise NotARepository(f"{task.instance_id}: {task.workdir} cannot be prepared: {_said(done)}")
    return commit


async def hide_tests(sandbox: Sandbox, task: SweTask) -> None:
    """Takes hidden tests away that R2E-Gym's images hold, in their place and in the repository."""
    if task.kind == "r2egym":
        done = await script(sandbox, _HIDE, f"{task.workdir}/{PurePosixPath(R2E_TESTS).name}", R2E_TESTS)
        if done.exit_code != 0:
            raise NotARepository(f"{task.instance_id}: its hidden tests cannot be taken away: {_said(done)}")


async def removed_tests(sandbox: Sandbox, task: SweTask, tests: Sequence[str]) -> dict[str, bytes]:
    """Tests that the last commit of SWE-smith's branch took away, by path. Asked before the history is stripped."""
    show = (
        'cd "$1"; for start in "$2" "origin/$2"; do git rev-parse -q --verify "$start^{commit}" >/dev/null && break; '
        'done; git cat-file -e "$start:$3" 2>/dev/null || git show "$start~1:$3"'
    )
    found = {path: await script(sandbox, show, task.workdir, task.instance_id, path) for path in tests}
    return {path: done.stdout for path, done in found.items() if done.exit_code == 0 and done.stdout}


async def export(sandbox: Sandbox, task: SweTask, base: str) -> bytes:
    """The agent's work as a patch: binary files, deletions and modes included. Empty when its repository is broken."""
    done = await script(sandbox, _EXPORT, task.workdir, base, output_bytes=MAX_LIST_BYTES)
    if done.exit_code != 0 or done.dropped_bytes:
        return b""
    changed = _paths(done)
    kept = changed if task.allow_tests else [path for path in changed if not is_test(path)]
    if not kept:
        return b""
    left_out = _listed(set(changed) - set(kept))
    done = await script(sandbox, _DIFF, task.workdir, base, stdin=left_out, output_bytes=MAX_PATCH_BYTES + 1)
    if done.exit_code != 0 or done.dropped_bytes or len(done.stdout) > MAX_PATCH_BYTES:
        return b""
    return done.stdout


async def apply(sandbox: Sandbox, task: SweTask, patch: str | bytes, *, after_build: bool = False) -> str | None:
    """Applies a patch; what git says if it does not fit.

    `after_build`: without the repository's settings, whose filters would rewrite what is applied.
    """
    command = f'cd "$1"; {_OTHER_SETTINGS if after_build else ""}git apply --whitespace=nowarn -'
    data = patch if isinstance(patch, bytes) else patch.encode()
    done = await script(sandbox, command, task.workdir, stdin=data)
    return None if done.exit_code == 0 else _said(done)


async def contents(sandbox: Sandbox, task: SweTask) -> dict[str, str]:
    """A mark of everything that is there, by path, told without git: what a build has done to git does not matter."""
    command = ["python3", "-I", "-c", _CONTENTS, task.workdir]
    done = await sandbox.run(command, timeout_s=GIT_S, output_bytes=MAX_LIST_BYTES, alone=True)
    if done.exit_code != 0 or done.dropped_bytes:
        raise SandboxError(f"python3 cannot tell what is there: {_said(done)}")
    told = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    return dict(zip(told[::2], told[1::2], strict=False))


async def snapshot(sandbox: Sandbox, task: SweTask) -> str:
    """The tree of everything that is there: what git ignores, as a build does, is part of the starting point, too."""
    done = await script(sandbox, 'cd "$1"; git add -A -f && git write-tree', task.workdir)
    if done.exit_code != 0:
        raise SandboxError(f"git cannot tell what is there: {_said(done)}")
    return done.stdout.decode().strip()


async def changed(sandbox: Sandbox, task: SweTask, start: str, tree: str) -> list[str]:
    """Every path that differs between two snapshots."""
    differ = 'cd "$1"; git diff-tree -r --name-only -z --no-renames "$2" "$3"'
    return _paths(await script(sandbox, differ, task.workdir, start, tree, output_bytes=MAX_LIST_BYTES))


async def modules(sandbox: Sandbox, task: SweTask, start: str) -> set[str]:
    """Names of the modules that the repository itself consists of."""
    show = 'cd "$1"; for place in "" src/ lib/; do git ls-tree -z --name-only "$2" $place; done'
    paths = _paths(await script(sandbox, show, task.workdir, start, output_bytes=MAX_LIST_BYTES))
    return {PurePosixPath(path).name.split(".", 1)[0] for path in paths}


async def is_imported(sandbox: Sandbox, task: SweTask, start: str, path: str) -> bool:
    """True if a package imports a module that stands beside its tests: then it is a part of the package."""
    *_, place, name = (re.escape(part) for part in PurePosixPath(path).with_suffix("").parts)
    end = "([^[:alnum:]_]|$)"
    pattern = f"(from|import) +[[:alnum:]_.]*{place}\\.{name}{end}|from +[[:alnum:]_.]*{place} +import .*{name}{end}"
    find = (
        'cd "$1"; git grep -q -E "$3" "$2" -- "*.py" ":(exclude,glob)**/tests/**" ":(exclude,glob)**/test_*.py" '
        '":(exclude,glob)**/conftest.py"'
    )
    return (await script(sandbox, find, task.workdir, start, pattern)).exit_code == 0


async def content(sandbox: Sandbox, task: SweTask, tree: str, path: str) -> bytes:
    """A file's content in a snapshot; nothing where it has no such file."""
    show = 'cd "$1"; git cat-file blob "$2:$3"'
    done = await script(sandbox, show, task.workdir, tree, path, output_bytes=MAX_LIST_BYTES)
    return done.stdout if done.exit_code == 0 else b""


def _paths(done: ProcessResult) -> list[str]:
    if done.exit_code != 0 or done.dropped_bytes:
        raise SandboxError(f"git cannot tell what changed: {_said(done)}")
    return [path for path in done.stdout.decode("utf-8", "surrogateescape").split("\0") if path]


async def put_back(sandbox: Sandbox, task: SweTask, start: str, paths: Sequence[str]) -> None:
    """Gives paths the content that they had in a snapshot; new ones are removed."""
    done = await script(sandbox, _PUT_BACK, task.workdir, start, stdin=_listed(paths), alone=True)
    if done.exit_code != 0:
        raise SandboxError(f"protected files could not be put back: {_said(done)}")


def _listed(paths: Collection[str]) -> bytes:
    """As `xargs -0` reads them: names of files need not be UTF-8."""
    return b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)


async def script(
    sandbox: Sandbox, text: str, *arguments: str, stdin: bytes = b"", output_bytes: int | None = None,
    alone: bool = False,
) -> ProcessResult:  # fmt: skip
    """Runs a shell script outside the agent's shell, with git's settings fixed."""
    command = ["sh", "-c", _SETTINGS + text, "sh", *arguments]
    return await sandbox.run(command, stdin=stdin, timeout_s=GIT_S, output_bytes=output_bytes, alone=alone)


def _said(done: ProcessResult) -> str:
    return (done.stderr + done.stdout).decode(errors="replace").strip()[-400:] or f"exit code {done.exit_code}"
