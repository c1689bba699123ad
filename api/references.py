"""Ids in paths: the public id of a thing becomes its reference within the caller's tenant."""

import re
from typing import Final

from starlette.requests import Request

from api.operations import Parameter, name_in_path
from api.service import tenant_of
from prorl_mq.errors import NotFound
from prorl_mq.schema.ids import BatchRef, GroupRef, JobRef, RunRef, pool_ref

_NAME: Final = r"[A-Za-z0-9_.\-]{1,96}"
_INDEX: Final = r"(0|[1-9][0-9]{0,5})"
FORMS: Final = {
    "run": (f"{_NAME}", "run"),
    "batch": (f"{_NAME}:{_NAME}", "run:batch"),
    "group": (f"{_NAME}:{_NAME}", "run:group"),
    "job": (f"{_NAME}:{_NAME}:{_INDEX}", "run:group:index"),
}


def id_parameter(kind: str, name: str = "id") -> Parameter:
    pattern, form = FORMS[kind]
    return name_in_path(name, f"The id of a {kind}: {form}", f"^{pattern}$")


def reference(request: Request, kind: str, name: str = "id") -> str:
    """Raises `NotFound` for what is no id of this kind: there cannot be such a thing."""
    pattern, form = FORMS[kind]
    public = request.path_params[name]
    if not re.fullmatch(pattern, public):
        raise NotFound(f"there is no {kind} {public[:200]!r}: the id of a {kind} reads {form}")
    return f"{tenant_of(request)}:{public}"


def run_of(request: Request) -> RunRef:
    return RunRef(reference(request, "run", "run"))


def batch_of(request: Request) -> BatchRef:
    return BatchRef(reference(request, "batch"))


def group_of(request: Request) -> GroupRef:
    return GroupRef(reference(request, "group"))


def job_of(request: Request) -> JobRef:
    return JobRef(reference(request, "job"))


def pool_ref_of(request: Request) -> str:
    """The caller's own pool of that name."""
    return pool_ref(tenant_of(request), pool_of(request))


def pool_of(request: Request) -> str:
    """Raises `NotFound` for what cannot be a pool's name."""
    pool: str = request.path_params["pool"]
    if not re.fullmatch(_NAME, pool):
        raise NotFound(f"there is no pool {pool[:200]!r}: a name has letters, digits, '_', '.', '-' only")
    return pool
