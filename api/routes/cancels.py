"""Cancelling a job, a group, a batch or a run."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from api.bodies import render
from api.operations import JSON, MSGPACK, Answer, Operation
from api.references import id_parameter, reference
from api.service import service_of
from prorl_mq.schema.status import CancelAnswer
from prorl_mq.service import cancel as cancellation

PATHS = {"jobs": "job", "groups": "group", "batches": "batch", "runs": "run"}


def _cancelling(kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def cancel(request: Request) -> Response:
        answer = await cancellation.cancel(service_of(request).store, kind, reference(request, kind))
        return render(request, answer, 202)

    return cancel


OPERATIONS = tuple(
    Operation(
        method="POST",
        path=f"/v1/{path}/{{id}}/cancel",
        id=f"cancel_{kind}",
        tag="cancelling",
        summary=f"Cancel a {kind}: waiting work ends now, workers stop what runs; may be repeated",
        endpoint=_cancelling(kind),
        parameters=(id_parameter(kind),),
        answers={202: Answer(description="It is under way", body=CancelAnswer, media_types=(JSON, MSGPACK))},
        errors=(404, 409, 422, 503),
    )
    for path, kind in PATHS.items()
)
