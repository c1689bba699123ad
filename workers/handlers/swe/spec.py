"""Specs of SWE-bench: what it sets and installs for a version of a repository, and how it calls the tests.

Newer rows bring the whole script of it; for the others there is the table that swebench 4.1.0 was the last to have
(`specs.json`, written by `ops/swe-specs.py`). Other data sets have neither: their images are ready as they are.
"""

import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from workers.handlers.rows import BadRow
from workers.handlers.swe.rows import Hidden, SweTask

_TABLE = Path(__file__).with_name("specs.json")
_MARKER = re.compile(r"^: '?>>>>> Start Test Output")
_OF_THE_FRAME = re.compile(
    r"^(?:#|set -|source \S*/activate\b|conda activate\b|cd /|git (?:config|status|show|diff|-c )|:? *$)"
)
_RESET = re.compile(r"^git (?:checkout|apply)\b")
_TAKING = ("-o", "--verbosity", "--parallel", "-p", "-W")  # options of the tests' commands with a word of their own


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Shell commands, as SWE-bench has them; `python` is a version like 3.9, or empty where a script told nothing."""

    python: str = ""
    eval_commands: Sequence[str] = ()
    install: str = ""
    test_cmd: str = ""

    @property
    def options(self) -> list[str]:
        """The words behind the program that the tests are called with."""
        return shlex.split(self.test_cmd)[1:]


class _Row(Spec, frozen=True, kw_only=True):
    versions: Sequence[str]


class _Table(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    repositories: Mapping[str, Sequence[_Row]]
    languages: Mapping[str, Sequence[str]]  # of repositories whose tests are not Python's


@functools.cache
def table() -> Mapping[str, Mapping[str, Spec]]:
    """Every repository of SWE-bench, and every version of it."""
    return {
        repository: {version: _plain(row) for row in rows for version in row.versions}
        for repository, rows in _read().repositories.items()
    }


def refuse_other_languages(task: SweTask) -> None:
    """Raises `BadRow` for a repository of SWE-bench's whose tests another language's tools run."""
    for language, projects in _read().languages.items():
        if task.project in projects:
            raise BadRow(
                f"{task.instance_id}: the tests of {task.project} are of another language ({language}), and only "
                "Python's can be run here; leave such rows out"
            )


@functools.cache
def _read() -> _Table:
    return msgspec.json.decode(_TABLE.read_bytes(), type=_Table)


def spec_of(task: SweTask, hidden: Hidden) -> Spec | None:
    """The row's own script before the table. None where there is nothing to do but run the tests.

    Raises `BadRow` for a version that SWE-bench does not have of one of its repositories.
    """
    if task.kind != "swebench":
        return None
    if hidden.eval_script:
        return of_script(hidden.eval_script)
    versions = table().get(task.project)
    if versions is not None and task.version not in versions:
        raise BadRow(
            f"{task.instance_id}: SWE-bench has no version {task.version!r} of {task.project}, so nothing says how it "
            f"is installed: correct `version`, or give the row an `eval_script`; known are {', '.join(versions)}"
        )
    return versions[task.version] if versions is not None else None


def of_script(script: str) -> Spec:
    """Commands of a row's `eval_script` beside the frame that all of them share.

    Commands in front of the first `git status` set the environment; those between there and the reset of the tests
    install.
    """
    before: list[str] = []
    install: list[str] = []
    told = False  # the state of the repository was
    lines = _commands(script)
    marker = next((number for number, line in enumerate(lines) if _MARKER.match(line)), None)
    for line in lines[:marker]:
        if _RESET.match(line):
            break
        told = told or line.startswith("git status")
        if not _OF_THE_FRAME.match(line):
            (install if told else before).append(line)
    test = lines[marker + 1] if marker is not None and marker + 1 < len(lines) else ""
    return Spec(eval_commands=before, install="\n".join(install), test_cmd=_without_tests(test))


def _commands(script: str) -> list[str]:
    """Lines that are commands; the text of a here-document is not."""
    found: list[str] = []
    end = None
    for line in script.splitlines():
        if end is not None:
            end = None if line == end else end
            continue
        found.append(line)
        if here := re.search(r"<<-?\s*'?\"?(\w+)", line):
            end = here.group(1)
    return found


def _without_tests(line: str) -> str:
    """The command to its last option: what follows are files, or Django's modules."""
    words = line.split(" ")
    options = [number for number, word in enumerate(words) if word.startswith("-")]
    if not options:
        return line
    last = options[-1]
    return " ".join(words[: last + (2 if words[last] in _TAKING else 1)])


def _plain(row: _Row) -> Spec:
    return Spec(python=row.python, eval_commands=row.eval_commands, install=row.install, test_cmd=row.test_cmd)
