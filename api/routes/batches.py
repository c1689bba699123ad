"""Submission of a batch, and its progress."""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api import parameters
from api.bodies import read_body, render
from api.operations import JSON, MSGPACK, Answer, Operation, Parameter
from api.references import batch_of, id_parameter, run_of
from api.service import service_of, tenant_of
from prorl_mq.errors import NotFound
from prorl_mq.process import tracing
from prorl_mq.schema.ids import public
from prorl_mq.schema.messages import BatchAccepted, BatchRequest, BatchStatus
from prorl_mq.service import batches, inspect
from prorl_mq.service import submit as submission
from prorl_mq.service.batches import DatedBatch
from prorl_mq.store.store import BATCHES_CAP


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest batches of a run."""

    batches: Sequence[DatedBatch]


async def submit(request: Request) -> Response:
    """202 after every group is in Redis; 200 with the same answer for a repeat."""
    batch = await read_body(request, BatchRequest)
    service, name = service_of(request), f"{batch.run_id}:{batch.batch_id}"
    with tracing.submission(service.tracing, name, request.headers.get("traceparent")) as trace:
        accepted = await submission.accept(service.store, tenant_of(request), batch, trace=trace)
    return render(request, accepted, 200 if accepted.repeated else 202)


async def status(request: Request) -> Response:
    return render(request, await inspect.batch_status(service_of(request).store, batch_of(request)))


async def listing(request: Request) -> Response:
    store, run = service_of(request).store, run_of(request)
    limit = parameters.whole(request, "limit", 50, 1, BATCHES_CAP)
    if not await inspect.run_exists(store, run):
        raise NotFound(f"there is no run {public(run)!r}: submit a batch first")
    return render(request, BatchList(batches=await batches.newest(store, run, limit=limit)))


LIMIT = Parameter(
    name="limit",
    where="query",
    schema={"type": "integer", "minimum": 1, "maximum": BATCHES_CAP, "default": 50},
    description="Batches in the answer at most",
)
OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/runs/{run}/batches",
        id="list_batches",
        tag="batches",
        summary="The newest batches of a run and the progress of each",
        endpoint=listing,
        parameters=(id_parameter("run", "run"), LIMIT),
        answers={200: Answer(description="The newest first", body=BatchList, media_types=(JSON, MSGPACK))},
        errors=(404, 422, 503),
    ),
    Operation(
        method="POST",
        path="/v1/batches",
        id="submit_batch",
        tag="batches",
        summary="Submit groups of rollouts; run_id and batch_id together are the idempotency key",
        endpoint=submit,
        body=BatchRequest,
        answers={
            202: Answer(description="Every group is stored", body=BatchAccepted, media_types=(JSON, MSGPACK)),
            200: Answer(description="It was submitted before", body=BatchAccepted, media_types=(JSON, MSGPACK)),
        },
        errors=(400, 409, 413, 415, 422, 429, 503),
    ),
    Operation(
        method="GET",
        path="/v1/batches/{id}",
        id="batch_status",
        tag="batches",
        summary="How many groups of a batch are open, and the verdicts of the others",
        endpoint=status,
        parameters=(id_parameter("batch"),),
        answers={200: Answer(description="Its state", body=BatchStatus, media_types=(JSON, MSGPACK))},
        errors=(404, 422, 503),
    ),
)
