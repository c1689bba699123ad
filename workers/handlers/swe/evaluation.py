"""EVAL of a patch: a fresh copy of the repository, the patch, the tests put over it, one run, one verdict."""

import asyncio
import functools
import json
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sandbox.errors import SandboxError
from sandbox.protocol import Sandbox
from workers.handler import Score
from workers.handlers.swe import grading, repository
from workers.handlers.swe.canaries import Canary, canaries
from workers.handlers.swe.grading import Judged
from workers.handlers.swe.protected import files_of_tests, protected
from workers.handlers.swe.rows import R2E_TESTS, Hidden, Task
from workers.handlers.swe.styles import Style, parser_of, style_of

RUN_S = 1800.0
_CANNOT_JUDGE = (3, 126, 127)
_HAS_PYTEST = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pytest') is None)"
_PYTHONS = ("/opt/miniconda3/envs/testbed/bin/python", "{workdir}/.venv/bin/python")  # else the one on the PATH


class RowBroken(Exception):
    """The row's own tests do not fit its repository. No patch is to blame."""


@functools.cache
def _program(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


async def evaluate(
    sandbox: Sandbox, task: Task, hidden: Hidden, patch: str | bytes, *, timeout_s: float = RUN_S
) -> Score:
    """The score of a patch in a fresh sandbox."""
    if not hidden.fail_to_pass and not hidden.expected:
        raise RowBroken(f"{task.instance_id}: it names no test that the fix must make pass")
    parser = hidden.log_parser or parser_of(task.project)
    style = style_of(parser)
    python = await _python(sandbox, task, style)
    tests = files_of_tests(hidden.test_patch, [*hidden.fail_to_pass, *hidden.pass_to_pass])
    if task.kind == "r2egym":
        await _copy_tests(sandbox, task)
        tests = ["r2e_tests"]
    removed = await repository.removed_tests(sandbox, task, tests) if task.kind == "swesmith" else {}
    await repository.prepare(sandbox, task)
    start = await repository.snapshot(sandbox, task)
    refused = await repository.apply(sandbox, task, patch)
    if refused is not None:
        return Score(reward=0.0, note=f"the patch does not apply: {refused}"[:300])
    changed = await repository.changed(sandbox, task, start)
    kept_back = protected(changed, tests)
    await repository.put_back(sandbox, task, start, kept_back)
    if set(kept_back) == set(changed):
        return Score(reward=0.0, note="the patch changes nothing but tests and their settings")
    if hidden.test_patch:
        refused = await repository.apply(sandbox, task, hidden.test_patch)
        if refused is not None:
            raise RowBroken(f"{task.instance_id}: its test patch does not apply: {refused}")
    for path, text in removed.items():
        await sandbox.write_file(f"{task.workdir}/{path}", text)
    planted = await _planted(sandbox, task, style, tests)
    judged = await _run(sandbox, task, style, python, tests, planted, timeout_s)
    forged = grading.forgery(judged, planted)
    if forged is not None:
        return Score(reward=0.0, note=f"{forged}: {judged.printed[-300:]}"[:400])
    if task.kind == "r2egym":
        return grading.scored_r2e(hidden, judged)
    return await asyncio.to_thread(grading.scored, task, hidden, parser, grading.log_of(style, judged, planted))


async def _copy_tests(sandbox: Sandbox, task: Task) -> None:
    """Before anything else, so that they are part of what a patch cannot change."""
    copy = 'rm -rf "$2" && cp -rL "$1" "$2"'
    done = await repository.script(sandbox, copy, R2E_TESTS, f"{task.workdir}/r2e_tests")
    if done.exit_code != 0:
        raise RowBroken(f"{task.instance_id}: its image has no {R2E_TESTS}")


async def _planted(sandbox: Sandbox, task: Task, style: Style, tests: Sequence[str]) -> list[Canary]:
    files = [path for path in tests if path.endswith(".py")]
    found = [await sandbox.read_file(f"{task.workdir}/{path}") for path in files]
    return canaries(style, [(path, text.decode(errors="replace")) for path, text in zip(files, found, strict=True)])


async def _run(
    sandbox: Sandbox, task: Task, style: Style, python: str, tests: Sequence[str], planted: Sequence[Canary],
    timeout_s: float,
) -> Judged:  # fmt: skip
    nonce = secrets.token_hex(16)
    given = {
        "nonce": nonce,
        "python": python,
        "runner": _program("runner.py"),
        "style": style,
        "cwd": task.workdir,
        "tests": [path for path in tests if path.endswith(".py") or path == "r2e_tests"],
        "canaries": [(canary.path, canary.text) for canary in planted],
        "timeout_s": timeout_s,
    }
    command = ["python3", "-I", "-c", _program("judge.py")]
    stdin = json.dumps(given).encode() + b"\n"
    done = await sandbox.run(command, stdin=stdin, timeout_s=timeout_s + 30, output_bytes=16 << 20)
    if done.exit_code in _CANNOT_JUDGE and not done.timed_out:
        raise SandboxError(f"the sandbox has no python3 (with ctypes) to judge with: {done.stderr[-300:]!r}")
    try:
        judged = msgspec.json.decode(done.stdout, type=Judged)
    except msgspec.MsgspecError:
        judged = None
    if judged is None or not secrets.compare_digest(judged.nonce, nonce):
        printed = done.stderr.decode(errors="replace")
        return Judged(
            nonce=nonce, statuses=(), ended=False, forged=False, timed_out=done.timed_out, exit_code=done.exit_code,
            printed=printed,
        )  # fmt: skip
    return judged


async def _python(sandbox: Sandbox, task: Task, style: Style) -> str:
    """The Python that the repository is installed in. Asked before the patch is applied, which could break it."""
    places = " ".join(place.format(workdir=task.workdir) for place in _PYTHONS)
    find = f"for place in {places}; do [ -x $place ] && echo $place && exit; done; command -v python3"
    python = (await sandbox.run(["sh", "-c", find])).stdout.decode().strip()
    if style == "pytest" and (await sandbox.run([python, "-I", "-c", _HAS_PYTEST])).exit_code != 0:
        raise RowBroken(f"{task.instance_id}: {python} of its image has no pytest")
    return python
