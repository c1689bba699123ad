"""Takes a file of rows through every step that needs no sandbox: `prorl-mq task check --rows` starts it.

python -m workers.rehearsal.rows FILE [--family MODULE[:CLASS]] [--json]

A line is a task as it is submitted, or a row as a data set publishes it, which is taken for one of `USUAL`. The steps
are the schema's, and those that the task family has (`row_steps`). A row ends with its first fault; the others
continue.
"""

import argparse
import functools
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from prorl_mq.errors import ConfigurationError, InvalidTask
from prorl_mq.process.screen.terminal import one_line, visible
from prorl_mq.schema.messages import Task
from prorl_mq.schema.task_schema import nearest, split
from prorl_mq.settings import Setting, add
from workers.handler import Handler
from workers.rehearsal.__main__ import made
from workers.stages.registry import Registry, load

SETTINGS = (
    Setting("file", "the rows, a line of JSON each", type=Path, metavar="FILE"),
    Setting("--family", "package.module of a task family, or package.module:Class", default=""),
    Setting("--json", "print JSON", alone=True),
)
USUAL = "swebench"  # data source of a row that names none
ERROR_CHARS = 2000  # a row may be quoted whole
SHOWN = 3  # rows that are named for each reason
_READ, _SCHEMA = "read", "schema"


class RowFault(NamedTuple):
    """A fault of a row: its line in the file, its name, the step that found it, and what that said."""

    line: int
    task_id: str
    step: str
    error: str


class Checked(NamedTuple):
    """A file's rows: how many there are, the steps they went through, and the faults."""

    rows: int
    steps: Sequence[str]
    faults: Sequence[RowFault]


class _Stopped(Exception):
    """A row's first fault."""

    def __init__(self, step: str, error: object) -> None:
        said = str(error)
        super().__init__(said if len(said) <= ERROR_CHARS else f"{said[:ERROR_CHARS]} ...")
        self.step = step


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 every row passes, 1 one does not, 2 there is nothing to check."""
    parser = argparse.ArgumentParser(prog="prorl-mq task check --rows", description="Tries rows without sandboxes.")
    add(parser, SETTINGS, {})
    given = parser.parse_args(argv)
    sys.path.insert(0, "")  # a module beside you need not be installed
    try:
        family = made(given.family) if given.family else None
        checked = check(given.file, Registry([family]) if family is not None else load(), family)
    except (ConfigurationError, OSError, UnicodeError) as error:
        print(f"prorl-mq task check: {error}", file=sys.stderr)
        return 2
    print(_as_json(checked) if given.json else told(checked))
    return int(bool(checked.faults))


def check(file: Path, registry: Registry, family: Handler | None = None) -> Checked:
    """Every row of a file. `family`: that of rows without a data source. Raises `ConfigurationError` without rows."""
    usual = family.data_sources[0] if family is not None else USUAL
    steps: dict[str, None] = {_READ: None, _SCHEMA: None}
    faults, rows = [], 0
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        rows += 1
        name = f"line {number}"
        try:
            task = _task(line, usual, name)
            name = task.task_id
            for step, keep in _steps(task, registry):
                steps[step] = None
                _tried(step, keep)
        except _Stopped as stopped:
            faults.append(RowFault(number, name, stopped.step, str(stopped)))
    if not rows:
        raise ConfigurationError(f"{file} has no rows: a row is a line of JSON")
    return Checked(rows, list(steps), faults)


def _task(line: str, usual: str, name: str) -> Task:
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise _Stopped(_READ, "it is no JSON object")
        if "payload" not in row:
            row = {"task_id": str(row.get("instance_id") or name), "data_source": usual, "payload": row}
        return msgspec.convert(row, Task)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise _Stopped(_READ, error) from error


def _steps(task: Task, registry: Registry) -> Iterator[tuple[str, Callable[[], object]]]:
    handler = registry.by_source.get(task.data_source)
    if handler is None:
        known = nearest(task.data_source, registry.by_source)
        raise _Stopped(_READ, f"no task family here has the data source {task.data_source!r}: {known}")
    parts: list[Mapping[str, Any]] = []
    yield _SCHEMA, lambda: parts.extend(split(handler.schema, task))
    for step, keep in getattr(handler, "row_steps", ()):
        yield step, functools.partial(_kept, keep, parts)


def _kept(keep: Callable[..., object], parts: Sequence[Mapping[str, Any]]) -> None:
    keep(*parts)


def _tried(step: str, keep: Callable[[], object]) -> None:
    try:
        keep()
    except InvalidTask as error:
        raise _Stopped(step, error) from error
    except Exception as error:
        raise _Stopped(step, f"{type(error).__name__}: {error}") from error


def told(checked: Checked) -> str:
    """A table of the steps, then each reason with the rows that it stopped."""
    stopped = {step: sum(fault.step == step for fault in checked.faults) for step in checked.steps}
    reached, lines = checked.rows, ["step        passed  failed"]
    for step in checked.steps:
        lines.append(f"{step:10} {reached - stopped[step]:7} {stopped[step]:7}")
        reached -= stopped[step]
    reasons = defaultdict[tuple[str, str], list[RowFault]](list)
    for fault in checked.faults:
        named_alike = fault.error.replace(fault.task_id, "ROW") if fault.task_id else fault.error
        reasons[fault.step, named_alike].append(fault)
    for (step, error), faults in sorted(reasons.items(), key=lambda item: -len(item[1])):
        named = ", ".join(f"{one_line(fault.task_id)} (line {fault.line})" for fault in faults[:SHOWN])
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        lines += ["", f"{len(faults)} at {step}: {visible(error)}", f"   {named}{more}"]
    return "\n".join([*lines, "", f"{checked.rows - len(checked.faults)} of {checked.rows} rows pass"])


def _as_json(checked: Checked) -> str:
    faults = [fault._asdict() for fault in checked.faults]
    return json.dumps({"rows": checked.rows, "steps": list(checked.steps), "faults": faults})


if __name__ == "__main__":
    sys.exit(main())
