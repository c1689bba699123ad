"""The payload fields that a task family knows, and those that only EVAL may see.

Workers announce the schemas of their handlers; the ingress splits payloads by them, so that it needs none of the
handlers' code.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from prorl_mq.errors import InvalidTask
from prorl_mq.schema.messages import Limits, Task


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """The payload fields of a task family. `sealed` ones are a subset of the others."""

    required: Sequence[str] = ()
    optional: Sequence[str] = ()
    sealed: Sequence[str] = ()  # answers and tests
    open_ended: bool = False  # true: fields not named above are accepted, as open
    seals_rest: bool = False  # true: they are accepted, as sealed: rows of data sets have columns that tell the answer
    eval_ms: int = 0  # EVAL's budget where a batch leaves `limits.eval_ms` as it is; 0: the service's default
    refused: Mapping[str, str] = {}  # fields that a row the family cannot run has, with the reason it is refused for


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a wrong name, as the end of a sentence."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are: {', '.join(known)}" if known else "none is known"


def limits_for(schema: Schema, limits: Limits) -> Limits:
    """A batch's limits with the time that the family needs in EVAL; what the batch says itself stays as it is."""
    usual = Limits()
    more_ms = schema.eval_ms - usual.eval_ms
    if limits.eval_ms != usual.eval_ms or more_ms <= 0:
        return limits
    total_ms = limits.total_ms + (more_ms if limits.total_ms == usual.total_ms else 0)
    return msgspec.structs.replace(limits, eval_ms=schema.eval_ms, total_ms=total_ms)


def told_of(value: Any) -> bool:
    """False of a field that says nothing: columns of published files may hold the JSON text of nothing."""
    return bool(value) and value not in ("{}", "[]", "null")


def split(schema: Schema, task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    """The open and the sealed part of a task's payload. Raises `InvalidTask` naming the field."""
    names = {*schema.required, *schema.optional, *schema.sealed}
    given = {**task.payload, **task.sealed}
    for name in schema.required:
        if name not in given:
            raise InvalidTask(f"task {task.task_id!r} ({task.data_source}) lacks the field {name!r}")
    for name, reason in schema.refused.items():
        if told_of(given.get(name)):
            raise InvalidTask(f"task {task.task_id!r} ({task.data_source}) has the field {name!r}: {reason}")
    for name in task.payload:
        if name not in names and not (schema.open_ended or schema.seals_rest):
            raise InvalidTask(
                f"task {task.task_id!r} ({task.data_source}) has an unknown field {name!r}: {nearest(name, names)}"
            )
    secret = set(schema.sealed) | (task.payload.keys() - names if schema.seals_rest else set())
    opened = {name: value for name, value in task.payload.items() if name not in secret}
    sealed = {name: value for name, value in task.payload.items() if name in secret}
    return opened, {**sealed, **task.sealed}
