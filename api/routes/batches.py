"""Submitting a batch, and how far it is."""

from starlette.requests import Request
from starlette.responses import Response

from api.bodies import read_body, render
from api.operations import JSON, MSGPACK, Answer, Operation
from api.references import batch_of, id_parameter
from api.service import service_of, tenant_of
from prorl_mq import inspection, submission, tracing
from prorl_mq.messages import BatchAccepted, BatchRequest, BatchStatus


async def submit(request: Request) -> Response:
    """202 after every group is in Redis; 200 with the same answer for a repeat."""
    batch = await read_body(request, BatchRequest)
    service, name = service_of(request), f"{batch.run_id}:{batch.batch_id}"
    with tracing.submission(service.tracing, name, request.headers.get("traceparent")) as trace:
        accepted = await submission.accept(service.broker, tenant_of(request), batch, trace=trace)
    return render(request, accepted, 200 if accepted.repeated else 202)


async def status(request: Request) -> Response:
    return render(request, await inspection.batch_status(service_of(request).broker, batch_of(request)))


OPERATIONS = (
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
