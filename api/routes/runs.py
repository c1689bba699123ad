"""The runs of a tenant: how each stands, and the weight and quotas that admission keeps."""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import read_body, render
from api.operations import JSON, MSGPACK, Answer, Operation
from api.references import id_parameter, run_of
from api.service import service_of, tenant_of
from prorl_mq.schema.settings import RunSettings
from prorl_mq.schema.status import RunStatus
from prorl_mq.store import runs


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a tenant that were used in the last week or hold something, by name."""

    runs: Sequence[RunStatus]


async def configure(request: Request) -> Response:
    """PUT: what the body leaves out is the default from now on."""
    run, settings = run_of(request), await read_body(request, RunSettings)
    return render(request, await runs.configure(service_of(request).store, run, settings))


async def status(request: Request) -> Response:
    return render(request, await runs.status(service_of(request).store, run_of(request)))


async def listing(request: Request) -> Response:
    found = await runs.of_tenant(service_of(request).store, tenant_of(request))
    return render(request, RunList(runs=found))


BOTH = (JSON, MSGPACK)
OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/runs",
        id="list_runs",
        tag="runs",
        summary="The caller's runs: what each holds, its weight and quotas, and why its groups wait",
        endpoint=listing,
        answers={200: Answer(description="By name", body=RunList, media_types=BOTH)},
        errors=(422, 503),
    ),
    Operation(
        method="GET",
        path="/v1/runs/{run}",
        id="run_status",
        tag="runs",
        summary="One run: what it holds, its weight and quotas, and why its groups wait",
        endpoint=status,
        parameters=(id_parameter("run", "run"),),
        answers={200: Answer(description="Its state", body=RunStatus, media_types=BOTH)},
        errors=(404, 422, 503),
    ),
    Operation(
        method="PUT",
        path="/v1/runs/{run}",
        id="configure_run",
        tag="runs",
        summary="Set a run's weight and quotas; they take effect within a second, and omitted ones get their default",
        endpoint=configure,
        parameters=(id_parameter("run", "run"),),
        body=RunSettings,
        answers={200: Answer(description="The run with its settings", body=RunStatus, media_types=BOTH)},
        errors=(400, 404, 413, 415, 422, 429, 503),
    ),
)
