"""The payload fields that a task family knows, and those that only EVAL may see.

Workers announce the schemas of their handlers; the ingress splits payloads by them, so that it needs none of the
handlers' code.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from prorl_mq.errors import InvalidTask
from prorl_mq.schema.messages import Limits, Task

_USUAL: Final = Limits()


class Schema(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The payload fields of a task family. `sealed` ones are a subset of the others."""

    required: Sequence[str] = ()
    optional: Sequence[str] = ()
    sealed: Sequence[str] = ()  # answers and tests
    open_ended: bool = False  # true: fields not named above are accepted, as open
    seals_rest: bool = False  # true: they are accepted, as sealed: rows of data sets have columns that tell the answer
    eval_ms: int = 0  # EVAL's budget where a batch leaves `limits.eval_ms` as it is; 0: the service's default
    refused: Mapping[str, str] = {}  # fields that a row the family cannot run has, with the reason it is refused for

    @cached_property
    def names(self) -> frozenset[str]:
        """All fields that it names, but for the refused ones."""
        return frozenset((*self.required, *self.optional, *self.sealed))

    @cached_property
    def secret(self) -> frozenset[str]:
        """The sealed ones."""
        return frozenset(self.sealed)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a wrong name, as the end of a sentence."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are: {', '.join(known)}" if known else "none is known"


def limits_for(schema: Schema, limits: Limits) -> Limits:
    """A batch's limits with the time that the family needs in EVAL; what the batch says itself stays as it is."""
    more_ms = schema.eval_ms - _USUAL.eval_ms
    if limits.eval_ms != _USUAL.eval_ms or more_ms <= 0:
        return limits
    total_ms = limits.total_ms + (more_ms if limits.total_ms == _USUAL.total_ms else 0)
    return msgspec.structs.replace(limits, eval_ms=schema.eval_ms, total_ms=total_ms)


def told_of(value: Any) -> bool:
    """False of a field that says nothing: columns of published files may hold the JSON text of nothing."""
    return bool(value) and value not in ("{}", "[]", "null")


def split(schema: Schema, task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    """The open and the sealed part of a task's payload. Raises `InvalidTask` naming the field."""
    names, payload = schema.names, task.payload
    for name in schema.required:
        if name not in payload and name not in task.sealed:
            raise InvalidTask(f"task {task.task_id!r} ({task.data_source}) lacks the field {name!r}")
    for name, reason in schema.refused.items():
        if told_of(task.sealed.get(name, payload.get(name))):
            raise InvalidTask(f"task {task.task_id!r} ({task.data_source}) has the field {name!r}: {reason}")
    if not (payload.keys() <= names or schema.open_ended or schema.seals_rest):
        name = next(name for name in payload if name not in names)
        raise InvalidTask(
            f"task {task.task_id!r} ({task.data_source}) has an unknown field {name!r}: {nearest(name, names)}"
        )
    secret = schema.secret | (payload.keys() - names) if schema.seals_rest else schema.secret
    if secret.isdisjoint(payload):
        return payload, task.sealed
    opened = payload.copy()
    sealed = {name: opened.pop(name) for name in payload if name in secret}  # in the order of the payload, as digests
    return opened, {**sealed, **task.sealed} if task.sealed else sealed
