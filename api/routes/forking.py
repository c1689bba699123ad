"""Forking a job."""

from starlette.requests import Request

from api.operations import operation
from api.service import Service
from prorl_mq.process import tracing
from prorl_mq.schema.ids import JobRef, public
from prorl_mq.schema.messages import ForkOrder
from prorl_mq.schema.status import ForkAnswer
from prorl_mq.service import fork


@operation(
    "POST",
    "/v1/jobs/{id}/fork",
    answers={202: "The group is stored", 200: "There was this fork already"},
    errors=(409, 429),
)
async def fork_job(request: Request, service: Service, job: JobRef, order: ForkOrder) -> tuple[int, ForkAnswer]:
    """Fork a job: n samples that begin with its turns and a copy of its sandbox; may be repeated."""
    with tracing.submission(service.tracing, f"fork of {public(job)}", request.headers.get("traceparent")) as trace:
        answer = await fork.fork(service.store, job, order, trace=trace)
    return 200 if answer.repeated else 202, answer
