"""The trajectory of a job in pieces: its turns a page at a time, its tokens by ranges."""

import asyncio
from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from api import parameters
from api.bodies import render
from api.operations import JSON, MSGPACK, Answer, Operation, Parameter
from api.problems import Problem
from api.references import id_parameter, job_of
from api.service import service_of
from prorl_mq.service import inspect, trajectory_pages
from prorl_mq.service.trajectory_pages import Outline, TokenPage

MOST_TURNS: Final = 50
MOST_TOKENS: Final = 4_096
PLACES: Final = 10_000_000
PARTS: Final[dict[str, Literal["prompt", "response"]]] = {"prompt": "prompt", "response": "response"}


async def turns(request: Request) -> Response:
    after, limit = (
        parameters.whole(request, "after", 0, 0, PLACES),
        parameters.whole(request, "limit", 10, 1, MOST_TURNS),
    )
    full = parameters.flag(request, "full")
    trajectory = await inspect.job_trajectory(service_of(request).store, job_of(request))
    return render(
        request, await asyncio.to_thread(trajectory_pages.outline, trajectory, after=after, limit=limit, full=full)
    )


async def tokens(request: Request) -> Response:
    segment, start = (parameters.whole(request, name, 0, 0, PLACES) for name in ("segment", "start"))
    limit = parameters.whole(request, "limit", 512, 1, MOST_TOKENS)
    part = request.query_params.get("part", "response")
    if part not in PARTS:
        raise Problem(422, f"the parameter 'part' is {part[:96]!r}: it must be prompt or response", field="part")
    trajectory = await inspect.job_trajectory(service_of(request).store, job_of(request))
    return render(
        request, trajectory_pages.tokens(trajectory, segment=segment, part=PARTS[part], start=start, limit=limit)
    )


def _whole(name: str, least: int, most: int, default: int, description: str) -> Parameter:
    schema = {"type": "integer", "minimum": least, "maximum": most, "default": default}
    return Parameter(name=name, where="query", schema=schema, description=description)


FULL: Final = Parameter(
    name="full",
    where="query",
    schema={"type": "boolean", "default": False},
    description="true: whole texts; else each is cut after 4,000 characters",
)
PART: Final = Parameter(
    name="part",
    where="query",
    schema={"enum": list(PARTS), "default": "response"},
    description="Which tokens of the segment",
)
BOTH: Final = (JSON, MSGPACK)

OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/jobs/{id}/turns",
        id="job_turns",
        tag="jobs",
        summary="What the agent said and did, turn by turn, without tokens",
        endpoint=turns,
        parameters=(
            id_parameter("job"),
            _whole("after", 0, PLACES, 0, "The number of the first turn wanted"),
            _whole("limit", 1, MOST_TURNS, 10, "Turns in one answer at most"),
            FULL,
        ),
        answers={200: Answer(description="A page of turns", body=Outline, media_types=BOTH)},
        errors=(404, 422, 503),
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}/tokens",
        id="job_tokens",
        tag="jobs",
        summary="A range of a trajectory's tokens with mask, log-probabilities and policy versions",
        endpoint=tokens,
        parameters=(
            id_parameter("job"),
            _whole("segment", 0, PLACES, 0, "Which segment"),
            PART,
            _whole("start", 0, PLACES, 0, "The first token wanted"),
            _whole("limit", 1, MOST_TOKENS, 512, "Tokens in one answer at most"),
        ),
        answers={200: Answer(description="The tokens", body=TokenPage, media_types=BOTH)},
        errors=(404, 422, 503),
    ),
)
