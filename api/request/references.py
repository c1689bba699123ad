"""Ids in paths: the public id of a thing becomes its reference within the caller's tenant."""

import re
from typing import Any, Final, NamedTuple, NewType

from starlette.requests import Request

from api.request.parameters import Parameter
from api.service import tenant_of
from prorl_mq.errors import NotFound
from prorl_mq.schema.ids import BatchRef, GroupRef, JobRef, RunRef

PoolRef = NewType("PoolRef", str)  # tenant:pool
NAME: Final = r"[A-Za-z0-9_.\-]{1,96}"
_INDEX: Final = r"(0|[1-9][0-9]{0,5})"


class Form(NamedTuple):
    """The form of the ids of one kind of thing. `rule` completes "there is no such thing:"."""

    kind: str
    pattern: str
    description: str
    rule: str


def _id(kind: str, pattern: str, shown: str) -> Form:
    return Form(kind, pattern, f"The id of a {kind}: {shown}", f"the id of a {kind} reads {shown}")


FORMS: Final[dict[Any, Form]] = {
    RunRef: _id("run", NAME, "run"),
    BatchRef: _id("batch", f"{NAME}:{NAME}", "run:batch"),
    GroupRef: _id("group", f"{NAME}:{NAME}", "run:group"),
    JobRef: _id("job", f"{NAME}:{NAME}:{_INDEX}", "run:group:index"),
    PoolRef: Form("pool", NAME, "The name of a pool", "a name has letters, digits, '_', '.', '-' only"),
}


def declared(form: Form, name: str) -> Parameter:
    """As the document shows it."""
    schema = {"type": "string", "pattern": f"^{form.pattern}$"}
    return Parameter(name=name, where="path", schema=schema, description=form.description, required=True)


def reference(request: Request, form: Form, name: str) -> str:
    """Raises `NotFound` for what is no id of this kind: there cannot be such a thing."""
    public = request.path_params[name]
    if not re.fullmatch(form.pattern, public):
        raise NotFound(f"there is no {form.kind} {public[:200]!r}: {form.rule}")
    return f"{tenant_of(request)}:{public}"
