"""The steps of a row that need no image, each by itself: `prorl-mq task check --rows` takes rows through them.

What passes here can still fail in its image; what fails here can succeed in none.
"""

import functools
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sandbox.images.registry.reference import ORAS, SCHEME, reference
from sandbox.isolators.writable.places import checked
from sandbox.protocol import SandboxSpec
from workers.handlers.rows import BadRow
from workers.handlers.swe import grading
from workers.handlers.swe.images import image_of
from workers.handlers.swe.protected import files_of_patch, files_of_tests
from workers.handlers.swe.rows import Hidden, SweTask, hidden_of, task_of, whole
from workers.handlers.swe.spec import refuse_other_languages, spec_of
from workers.handlers.swe.styles import line, parser_of, style_of

Row = Mapping[str, Any]
Step = Callable[[Row, Row], None]


def _row(opened: Row, sealed: Row) -> None:
    """Its columns are there, and of their types."""
    refuse_other_languages(task_of(opened))
    task, hidden = _read(opened, sealed)
    if task.kind == "r2egym":
        if not hidden.expected:
            raise BadRow("expected_output_json names no test")
        return
    if not hidden.fail_to_pass:
        raise BadRow("FAIL_TO_PASS names no test that the fix must make pass")
    if hidden.test_patch and not files_of_patch(hidden.test_patch):
        raise BadRow("test_patch is no patch of git's: it has no line that begins with `diff --git a/`")
    tests = files_of_tests(hidden.test_patch, [*hidden.fail_to_pass, *hidden.pass_to_pass])
    if not any(path.endswith(".py") for path in tests):
        raise BadRow("neither test_patch nor the names of its tests say which files of Python hold them")


def _image(opened: Row, _sealed: Row) -> None:
    """An image can be named, by a name that registries have, and a sandbox can have the repository's directory."""
    task = task_of(opened)
    image = image_of(task)
    if image.startswith((SCHEME, ORAS)):
        reference(image)
    checked(SandboxSpec(owner=task.instance_id, image=image, writable=task.writable))


def _spec(opened: Row, sealed: Row) -> None:
    """The spec of SWE-bench is known, where the row is one of its own."""
    spec_of(*_read(opened, sealed))


def _script(opened: Row, sealed: Row) -> None:
    """The shell can read that."""
    spec = spec_of(*_read(opened, sealed))
    for text in [*spec.eval_commands, spec.install] if spec is not None else ():
        if fault := _unreadable(text):
            raise BadRow(f"bash cannot read {text!r}: {fault}")


@functools.cache
def _unreadable(text: str) -> str | None:
    """The words of bash about a command that it cannot read; rows share most of theirs."""
    done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False)
    said = done.stderr.decode(errors="replace").strip()
    return (said or f"exit code {done.returncode}") if done.returncode != 0 else None


def _parser(opened: Row, sealed: Row) -> None:
    """Its tests can be run here, and SWE-bench's parser finds each of their names in a log of ours."""
    task, hidden = _read(opened, sealed)
    parser = hidden.log_parser or parser_of(task.project)
    style = style_of(parser)
    if task.kind == "r2egym":
        return
    for status, reward in (("PASSED", 1.0), ("FAILED", 0.0)):
        log = grading.between_markers(
            line(style, status, name) for name in (*hidden.fail_to_pass, *hidden.pass_to_pass)
        )
        score = grading.scored(task, hidden, parser, log)
        if score.reward != reward:
            raise BadRow(f"where all its tests are {status}, {parser} makes a reward of {score.reward:g}: {score.note}")


STEPS: Sequence[tuple[str, Step]] = (
    ("row", _row),
    ("image", _image),
    ("spec", _spec),
    ("script", _script),
    ("parser", _parser),
)


def _read(opened: Row, sealed: Row) -> tuple[SweTask, Hidden]:
    row = whole(opened, sealed)
    return task_of(row), hidden_of(row)
