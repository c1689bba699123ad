"""One job: its state and why it waits, its time line, its tokens."""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import render
from api.operations import JSON, MSGPACK, Answer, Operation
from api.references import id_parameter, job_of
from api.service import service_of
from prorl_mq.schema.messages import Event, JobStatus
from prorl_mq.schema.timeline import Timeline
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.service import inspect


class JobEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The newest 64 state changes of a job, oldest first."""

    events: Sequence[Event]


async def status(request: Request) -> Response:
    return render(request, await inspect.job_status(service_of(request).store, job_of(request)))


async def events(request: Request) -> Response:
    found = await inspect.job_events(service_of(request).store, job_of(request))
    return render(request, JobEvents(events=found))


async def timeline(request: Request) -> Response:
    return render(request, await inspect.job_timeline(service_of(request).store, job_of(request)))


async def trajectory(request: Request) -> Response:
    return render(request, await inspect.job_trajectory(service_of(request).store, job_of(request)))


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/jobs/{id}",
        id="job_status",
        tag="jobs",
        summary="Where a job is, and why it waits",
        endpoint=status,
        parameters=(id_parameter("job"),),
        answers={200: Answer(description="Its state", body=JobStatus, media_types=(JSON, MSGPACK))},
        errors=(404, 422, 503),
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}/events",
        id="job_events",
        tag="jobs",
        summary="The last events of a job",
        endpoint=events,
        parameters=(id_parameter("job"),),
        answers={200: Answer(description="Its state changes", body=JobEvents, media_types=(JSON, MSGPACK))},
        errors=(404, 422, 503),
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}/timeline",
        id="job_timeline",
        tag="jobs",
        summary="Every state change of a job with its duration, its attempts, and why it waits",
        endpoint=timeline,
        parameters=(id_parameter("job"),),
        answers={200: Answer(description="Its time line", body=Timeline, media_types=(JSON, MSGPACK))},
        errors=(404, 422, 503),
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}/trajectory",
        id="job_trajectory",
        tag="jobs",
        summary="The token-exact record of a job; MessagePack is several times smaller than JSON",
        endpoint=trajectory,
        parameters=(id_parameter("job"),),
        answers={200: Answer(description="Its tokens", body=Trajectory, media_types=(JSON, MSGPACK))},
        errors=(404, 422, 503),
    ),
)
