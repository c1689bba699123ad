"""The payload fields that a task family knows, and those that only EVAL may see.

Workers announce the schemas of their handlers; the ingress splits payloads by them, so that it needs none of the
handlers' code.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from prorl_mq.errors import InvalidTask
from prorl_mq.schema.messages import Task


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """The payload fields of a task family. `sealed` ones are a subset of the others."""

    required: Sequence[str] = ()
    optional: Sequence[str] = ()
    sealed: Sequence[str] = ()  # answers and tests
    open_ended: bool = False  # true: fields not named above are accepted, as open
    seals_rest: bool = False  # true: they are accepted, as sealed: rows of data sets have columns that tell the answer


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a wrong name, as the end of a sentence."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are: {', '.join(known)}" if known else "none is known"


def split(schema: Schema, task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    """The open and the sealed part of a task's payload. Raises `InvalidTask` naming the field."""
    names = {*schema.required, *schema.optional, *schema.sealed}
    given = {**task.payload, **task.sealed}
    for name in schema.required:
        if name not in given:
            raise InvalidTask(f"task {task.task_id!r} ({task.data_source}) lacks the field {name!r}")
    for name in task.payload:
        if name not in names and not (schema.open_ended or schema.seals_rest):
            raise InvalidTask(
                f"task {task.task_id!r} ({task.data_source}) has an unknown field {name!r}: {nearest(name, names)}"
            )
    secret = set(schema.sealed) | (task.payload.keys() - names if schema.seals_rest else set())
    opened = {name: value for name, value in task.payload.items() if name not in secret}
    sealed = {name: value for name, value in task.payload.items() if name in secret}
    return opened, {**sealed, **task.sealed}
