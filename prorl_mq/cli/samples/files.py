"""Files of samples, as `prorl-mq submit` writes them, and the rows of their tasks."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from prorl_mq.cli.tasks_file import read
from prorl_mq.converters.table import Sample
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import Task


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One sample, and its line with all fields."""

    sample: Sample
    fields: dict[str, Any]


def samples(path: Path) -> Iterator[Line]:
    """The samples of a file. Raises `ConfigurationError` naming the line that is none."""
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield _line(path, number, text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
        if "segment" in fields:
            raise ConfigurationError(
                f"{path}:{number} is a row of an export, which has no single calls: give the file that `submit` wrote"
            )
        return Line(sample=msgspec.json.decode(text, type=Sample), fields=fields)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        fault = f"{path}:{number} is not a sample written by `prorl-mq submit`: {error}"
        raise ConfigurationError(fault) from None


def tasks(path: Path, data_source: str | None) -> Mapping[str, Task]:
    """The tasks of a file of rows, by their id. Raises `ConfigurationError`, also for two tasks of one id."""
    found: dict[str, Task] = {}
    for line in read(path, n=1, data_source=data_source):
        task = line.group.task
        if found.setdefault(task.task_id, task) != task:
            raise ConfigurationError(f"{path}:{line.number}: another task is called {task.task_id!r}, too")
    return found


def row(found: Mapping[str, Task], path: Path, task_id: str) -> Task:
    """Raises `ConfigurationError`."""
    if task_id not in found:
        raise ConfigurationError(f"{path} has no task {task_id!r}: give the rows that were submitted")
    return found[task_id]
