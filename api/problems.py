"""Problem documents (RFC 9457): every error answer of the HTTP interface, and the mapping of faults to them.

No input of a client ends as 500: what a client can cause is named here.
"""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from prorl_mq import errors
from prorl_mq.schema.strict import Misfit
from prorl_mq.store.server import faults

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2

FAULTS: Final[Mapping[type[Exception], tuple[int, str]]] = {
    Misfit: (422, "misfit"),
    errors.InvalidTask: (422, "invalid-task"),
    errors.InvalidBatch: (422, "invalid-batch"),
    errors.NoWorkersYet: (503, "no-workers-yet"),
    errors.InvalidCursor: (422, "invalid-cursor"),
    errors.UnknownDataSource: (422, "unknown-data-source"),
    errors.AddressRefused: (403, "address-refused"),
    errors.RunMoved: (421, "run-moved"),
    errors.RunArriving: (503, "run-arriving"),
    errors.NotFound: (404, "not-found"),
    errors.Conflict: (409, "conflict"),
    errors.OverQuota: (429, "over-quota"),
    errors.Unconfirmed: (503, "unconfirmed"),
    errors.RedisUnavailable: (503, "unavailable"),
    errors.ServerUnfit: (503, "unavailable"),
    errors.PayloadUnavailable: (503, "unavailable"),
    errors.PayloadUnwritten: (503, "unavailable"),
}


class ProblemDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Description of a failure. `field` is a JSON path into the body, or the name of a parameter."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    nearest: str | None = None  # the valid name that was probably meant
    cell: str | None = None  # that has the run


class Problem(Exception):
    """An error answer."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str | None = None,
        field: str | None = None,
        nearest: str | None = None,
        cell: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = dict(headers or {})
        title = HTTPStatus(status).phrase
        self.document = ProblemDocument(
            type=f"urn:prorl-mq:problem:{kind or title.lower().replace(' ', '-')}",
            title=title,
            status=status,
            detail=detail,
            field=field,
            nearest=nearest,
            cell=cell,
        )


def problem_of(error: Exception) -> Problem:
    """The answer to a fault."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return _of_routing(error)
    if isinstance(error, (faults.RedisError, *faults.OUTAGES)):
        return _of_redis(error)
    for kind, (status, name) in FAULTS.items():
        if isinstance(error, kind):
            named = {key: getattr(error, key, None) for key in ("field", "nearest", "cell")}
            return Problem(status, str(error), kind=name, headers=_wait_of(status, error), **named)
    return Problem(500, "the service failed; its log has the details", kind="fault")


def unavailable(detail: str) -> Problem:
    return Problem(503, detail, kind="unavailable", headers=_retry_after(RETRY_AFTER_S))


def render(problem: Problem) -> Response:
    body = msgspec.json.encode(problem.document)
    return Response(body, problem.status, problem.headers, MEDIA_TYPE)


async def answer(_: Request, error: Exception) -> Response:
    """The exception handler of the application."""
    return render(problem_of(error))


def _of_routing(error: HTTPException) -> Problem:
    headers = error.headers or {}
    details = {404: "there is no such path", 405: f"this path accepts {headers.get('Allow', 'other methods')}"}
    detail = details.get(error.status_code, error.detail)
    return Problem(error.status_code, f"{detail}: /docs lists the operations", headers=headers)


def _of_redis(error: Exception) -> Problem:
    match faults.kind_of(error):
        case faults.FaultKind.FULL:
            full = "Redis has reached its memory limit: acknowledge results, or give it more memory"
            return Problem(429, full, kind="over-quota", headers=_retry_after(RETRY_AFTER_S))
        case faults.FaultKind.AWAY:
            return unavailable(f"Redis does not answer ({error}): try again")
        case faults.FaultKind.REFUSED:
            return Problem(500, "Redis refused a command; the log has the details", kind="fault")


def _wait_of(status: int, error: Exception) -> dict[str, str] | None:
    if status not in {429, 503}:
        return None
    return _retry_after(getattr(error, "retry_after_ms", RETRY_AFTER_S * 1000) / 1000)


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
