"""One run of hidden tests: a fresh copy of the repository, the patch, and the tests put over it."""

import functools
import json
import logging
import random
import re
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from prorl_mq.schema.faults import Cause
from sandbox.errors import SandboxError
from sandbox.protocol import ProcessResult, Sandbox
from workers.handlers.swe import environment, repository
from workers.handlers.swe.canaries import Canary, canaries
from workers.handlers.swe.grading import Judged
from workers.handlers.swe.opposites import opposed
from workers.handlers.swe.protected import (
    SHARED,
    files_of_patch,
    files_of_tests,
    may_be_source,
    protected,
    steers_tests,
)
from workers.handlers.swe.rows import R2E_TESTS, Hidden, SweTask
from workers.handlers.swe.spec import Spec, spec_of
from workers.handlers.swe.styles import Style, named, options_of, parser_of, style_of

_CANNOT_JUDGE = (3, 126, 127)
_HAS_PYTEST = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pytest') is None)"
_PYTHONS = (f"{environment.PREFIX}/bin/python", "{workdir}/.venv/bin/python")  # else the one on the PATH
_PLACE = Path(R2E_TESTS).name
_MAX_FILES = 100  # of a directory of tests that are read
log = logging.getLogger("workers.handlers.swe.trial")


class RowBroken(Exception):
    """The row's own tests do not fit its repository. No patch is to blame."""

    cause = Cause.ROW


class Ready(NamedTuple):
    """A repository before the patch: how its tests run, where they are, the snapshot to compare with."""

    sandbox: Sandbox
    task: SweTask
    hidden: Hidden
    parser: str
    style: Style
    python: str
    tests: Sequence[str]
    removed: Mapping[str, bytes]  # by path: tests that are there again once the patch is
    start: str
    spec: Spec | None  # what is set and installed, where SWE-bench says so
    variables: Mapping[str, str]  # of the tests


class TestLimits(NamedTuple):
    """Seconds of one run of the tests, all its processes together."""

    cpu_s: float
    wall_s: float
    ending_s: float = 30.0  # for the judge's word once the time is over


class Tested(NamedTuple):
    """A run of the tests."""

    judged: Judged
    planted: Sequence[Canary]
    turned: Collection[str]  # names of the tests that were opposites
    installed: int | None = None  # the exit code of what was installed before them


class PatchRefused(Exception):
    """The patch earns nothing, whatever the tests would say."""


async def ready(sandbox: Sandbox, task: SweTask, hidden: Hidden) -> Ready:
    """Raises `RowBroken`, `NoStyle`, `NotARepository` or `SandboxError`: no patch is there yet."""
    if not hidden.fail_to_pass and not hidden.expected:
        raise RowBroken(f"{task.instance_id}: it names no test that the fix must make pass")
    parser = hidden.log_parser or parser_of(task.project)
    style = style_of(parser)
    python = await _python(sandbox, task, style)
    tests = files_of_tests(hidden.test_patch, [*hidden.fail_to_pass, *hidden.pass_to_pass])
    if task.kind == "r2egym":
        await _copy_tests(sandbox, task)
        tests = [_PLACE]
    removed = await repository.removed_tests(sandbox, task, tests) if task.kind == "swesmith" else {}
    await repository.prepare(sandbox, task)
    start = await repository.snapshot(sandbox, task)
    spec = spec_of(task, hidden)
    variables = await environment.of_tests(sandbox, task.workdir, python, spec.eval_commands if spec else ())
    return Ready(sandbox, task, hidden, parser, style, python, tests, removed, start, spec, variables)


async def run_tests(
    ready: Ready, patch: str | bytes | None, limits: TestLimits, *, turn: Collection[str] = ()
) -> Tested:
    """Applies the patch, if any, and runs the tests; those named in `turn` as their opposites.

    Raises `PatchRefused` for a patch that cannot count. Any other exception may be the patch's doing or not.
    """
    began = time.monotonic()
    if patch is not None:
        await _apply(ready, patch)
    built = await _install(ready, limits)
    if built is not None and built.timed_out:
        return Tested(_late(built), (), ())
    await _put_tests(ready, after_build=built is not None)
    files = await _files(ready)
    chance = random.SystemRandom()
    turned: list[str] = []
    for path, text in files.items() if turn else ():
        found = opposed(text, lambda names, path=path: named(ready.style, path, names) in turn, chance)  # type: ignore[misc]
        turned += [named(ready.style, path, names) for names in found.tests]
        await ready.sandbox.write_file(f"{ready.task.workdir}/{path}", found.text.encode())
    planted = canaries(ready.style, list(files.items()))
    left = limits._replace(wall_s=max(0.0, limits.wall_s - (time.monotonic() - began)))
    return Tested(await _run(ready, planted, left), planted, turned, None if built is None else built.exit_code)


async def _apply(ready: Ready, patch: str | bytes) -> None:
    refused = await repository.apply(ready.sandbox, ready.task, patch)
    if refused is not None:
        raise PatchRefused(f"the patch does not apply: {refused}")
    changed, kept_back = await _put_back(ready)
    if set(kept_back) == set(changed):
        raise PatchRefused("the patch changes nothing but tests and their settings")


async def _put_back(ready: Ready) -> tuple[list[str], list[str]]:
    """Every path that was changed, and those of them that were put back, since no patch may change them."""
    sandbox, task, start = ready.sandbox, ready.task, ready.start
    tree = await repository.snapshot(sandbox, task)
    changed = await repository.changed(sandbox, task, start, tree)
    own = await repository.modules(sandbox, task, start)
    kept_back = [path for path in protected(changed, ready.tests, own) if not await _is_free(ready, tree, path)]
    await repository.put_back(sandbox, task, start, kept_back)
    return changed, kept_back


async def _is_free(ready: Ready, tree: str, path: str) -> bool:
    """True if a path that looks protected is part of what a fix changes, a source, or settings of other tools.

    SWE-bench resets the files of the test patch, and nothing else: what the row's own fix changes is never held back.
    """
    sandbox, task = ready.sandbox, ready.task
    if path in files_of_patch(ready.hidden.test_patch):
        return False
    if path in files_of_patch(ready.hidden.patch):
        return True
    if path in ready.tests:
        return False
    if Path(path).name in SHARED:
        before, after = [await repository.content(sandbox, task, each, path) for each in (ready.start, tree)]
        return not steers_tests(path, before, after)
    return may_be_source(path) and await repository.is_imported(sandbox, task, ready.start, path)


async def _install(ready: Ready, limits: TestLimits) -> ProcessResult | None:
    """Installs the patched repository as SWE-bench does. Raises `PatchRefused` where that replaces the test runner."""
    if ready.spec is None or not ready.spec.install:
        return None
    sandbox, task = ready.sandbox, ready.task
    own = await repository.modules(sandbox, task, ready.start)
    tree = await repository.snapshot(sandbox, task)
    before = await repository.contents(sandbox, task)
    done = await environment.install(sandbox, task.workdir, ready.spec.install, ready.variables, limits.wall_s)
    await _undo(ready, tree, before, own)
    if shadowed := await environment.shadowed(sandbox, own):
        raise PatchRefused(f"its build installs modules of the test runner: {', '.join(shadowed)}")
    return done


async def _undo(ready: Ready, tree: str, before: Mapping[str, str], own: Collection[str]) -> None:
    """Puts back what a build changed of the protected files. Raises `PatchRefused` where that is not possible.

    A build runs the patch's code, which can reach git's records, too: so git is not asked what changed, and what it
    puts back is looked at.
    """
    sandbox, task, hidden = ready.sandbox, ready.task, ready.hidden
    after = await repository.contents(sandbox, task)
    differ = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    free = files_of_patch(hidden.patch) - files_of_patch(hidden.test_patch)
    kept_back = [path for path in protected(differ, ready.tests, own) if path not in free]
    if not kept_back:
        return
    log.info("%s: its build changed %d files that are kept as they were", task.instance_id, len(kept_back))
    try:
        await repository.put_back(sandbox, task, tree, kept_back)
    except SandboxError as error:
        raise PatchRefused(f"its build changes protected files, and git's records of them: {error}") from error
    after = await repository.contents(sandbox, task)
    if left := [path for path in kept_back if before.get(path) != after.get(path)]:
        raise PatchRefused(f"its build changes protected files, and git's records of them: {', '.join(left[:5])}")


def _late(built: ProcessResult) -> Judged:
    """A build that had no end in the time of the tests."""
    return Judged(
        nonce="", statuses=(), ended=False, forged=False, timed_out=True, exit_code=None,
        printed=(built.stdout + built.stderr).decode(errors="replace"), wall_s=built.seconds,
        cpu_s=built.cpu_seconds, starved_s=built.starved_seconds,
    )  # fmt: skip


async def _put_tests(ready: Ready, *, after_build: bool) -> None:
    if ready.hidden.test_patch:
        patch = ready.hidden.test_patch
        refused = await repository.apply(ready.sandbox, ready.task, patch, after_build=after_build)
        if refused is not None:
            raise RowBroken(f"{ready.task.instance_id}: its test patch does not apply: {refused}")
    for path, text in ready.removed.items():
        await ready.sandbox.write_file(f"{ready.task.workdir}/{path}", text)


async def _copy_tests(sandbox: Sandbox, task: SweTask) -> None:
    """Before anything else, so that they are part of what a patch cannot change."""
    copy = 'rm -rf "$2" && cp -rL "$1" "$2"'
    done = await repository.script(sandbox, copy, R2E_TESTS, f"{task.workdir}/{_PLACE}")
    if done.exit_code != 0:
        raise RowBroken(f"{task.instance_id}: its image has no {R2E_TESTS}")


async def _files(ready: Ready) -> dict[str, str]:
    """The files of tests with their text."""
    paths = [path for path in ready.tests if path.endswith(".py")]
    if _PLACE in ready.tests:
        find = 'cd "$1" && find "$2" -name "test*.py" -type f'
        done = await repository.script(ready.sandbox, find, ready.task.workdir, _PLACE)
        paths += sorted(done.stdout.decode(errors="replace").splitlines())[:_MAX_FILES]
    found = [await ready.sandbox.read_file(f"{ready.task.workdir}/{path}") for path in paths]
    return {path: text.decode(errors="replace") for path, text in zip(paths, found, strict=True)}


@functools.cache
def _program(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


async def _run(ready: Ready, planted: Sequence[Canary], limits: TestLimits) -> Judged:
    nonce = secrets.token_hex(16)
    run = {
        "style": ready.style,
        "options": options_of(ready.style, ready.spec),
        "tests": [path for path in ready.tests if path.endswith(".py") or path == _PLACE],
        "site": environment.USER_BASE,
    }
    given = {
        "nonce": nonce,
        "python": ready.python,
        "runner": _program("runner.py"),
        "run": json.dumps(run),
        "environment": ready.variables,
        "cwd": ready.task.workdir,
        "canaries": [(canary.path, canary.text) for canary in planted],
        "cpu_s": limits.cpu_s,
        "wall_s": limits.wall_s,
    }
    command = ["python3", "-I", "-c", _program("judge.py")]
    stdin = json.dumps(given).encode() + b"\n"
    timeout_s = limits.wall_s + limits.ending_s
    done = await ready.sandbox.run(command, stdin=stdin, timeout_s=timeout_s, output_bytes=16 << 20, alone=True)
    if done.exit_code in _CANNOT_JUDGE and not done.timed_out:
        raise SandboxError(f"the sandbox has no python3 (with ctypes) to judge with: {done.stderr[-300:]!r}")
    return read_judged(done.stdout, nonce) or Judged(
        nonce=nonce, statuses=(), ended=False, forged=False, timed_out=done.timed_out, exit_code=done.exit_code,
        printed=done.stderr.decode(errors="replace"),
    )  # fmt: skip


def read_judged(said: bytes, nonce: str) -> Judged | None:
    """The judge's word, from bytes that anybody may have written; None for anything else."""
    try:
        judged = msgspec.json.decode(said, type=Judged)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return judged if secrets.compare_digest(judged.nonce.encode(), nonce.encode()) else None


async def _python(sandbox: Sandbox, task: SweTask, style: Style) -> str:
    """The Python that the repository is installed in. Asked before the patch is applied, which could break it."""
    places = " ".join(place.format(workdir=task.workdir) for place in _PYTHONS)
    find = f"for place in {places}; do [ -x $place ] && echo $place && exit; done; command -v python3"
    python = (await sandbox.run(["sh", "-c", find])).stdout.decode().strip()
    if style == "pytest" and (await sandbox.run([python, "-I", "-c", _HAS_PYTEST])).exit_code != 0:
        raise RowBroken(f"{task.instance_id}: {python} of its image has no pytest")
    return python


def function_of(name: str) -> str:
    """The name of the function in a test's name, whatever the style."""
    return re.split(r"::|\.", without_parameters(name))[-1]


def without_parameters(name: str) -> str:
    return name.split("[", 1)[0]
