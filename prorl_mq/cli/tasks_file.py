"""Files of tasks: a JSON line for each, either a task or a whole group request."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.messages import GroupRequest, Task
from prorl_mq.schema.strict import Misfit, convert

T = TypeVar("T")
SHOWN_FAULTS: Final = 10


class TaskLine(NamedTuple):
    """One group, and the line that it stands on."""

    number: int
    group: GroupRequest


def read(path: Path, *, n: int, data_source: str | None = None) -> list[TaskLine]:
    """Raises `ConfigurationError` with the faulty lines. `n` and `data_source` are for lines without their own."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    lines: list[TaskLine] = []
    faults: list[str] = []
    for number, row in enumerate(data.split(b"\n"), 1):
        if not row.strip():
            continue
        try:
            lines.append(TaskLine(number, _group(row, n, data_source)))
        except Misfit as misfit:
            faults.append(f"{path}:{number}: {misfit}")
    if faults:
        more = len(faults) - SHOWN_FAULTS
        raise ConfigurationError("\n".join(faults[:SHOWN_FAULTS]) + (f"\nand {more} more lines" if more > 0 else ""))
    if not lines:
        raise ConfigurationError(f"{path} has no tasks")
    return lines


def _group(row: bytes, n: int, data_source: str | None) -> GroupRequest:
    try:
        found = msgspec.json.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misfit(f"this is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Misfit("this is not a JSON object")
    if "task" in found:
        return convert({"n": n, **found, "task": _sourced(found["task"], data_source)}, GroupRequest)
    return GroupRequest(task=convert(_sourced(found, data_source), Task), n=n)


def with_field(line: TaskLine, name: str, value: Any) -> TaskLine:
    """The line with one field of its task's payload set."""
    task = line.group.task
    task = msgspec.structs.replace(task, payload={**task.payload, name: value})
    return line._replace(group=msgspec.structs.replace(line.group, task=task))


def _sourced(task: Any, data_source: str | None) -> Any:
    if isinstance(task, dict) and "data_source" not in task:
        if data_source is None:
            raise Misfit("data_source is missing: add it, or give --data-source for all such lines")
        return {**task, "data_source": data_source}
    return task


def assignments(option: str, pairs: Sequence[str], kind: type[T]) -> T:
    """Reads `name=value` words into a struct. Raises `ConfigurationError` naming the word."""
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"{option} {pair!r} is not of the form name=value")
        try:
            fields[name] = json.loads(text)
        except ValueError:
            fields[name] = text
    try:
        return convert(fields, kind)
    except Misfit as misfit:
        raise ConfigurationError(f"{option}: {misfit}") from None


def located(message: str, path: Path, lines: Sequence[TaskLine]) -> str:
    """The service's complaint, with the line that it is about where it names a task or a data source."""
    for name in ("task_id", "data_source"):
        for line in lines:
            if repr(getattr(line.group.task, name)) in message:
                return f"{path}:{line.number}: {message}"
    return message


def digest_source(lines: Sequence[TaskLine]) -> bytes:
    """The groups in one canonical form: what makes two submissions the same."""
    return msgspec.msgpack.encode([line.group for line in lines])
