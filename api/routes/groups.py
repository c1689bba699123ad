"""The groups of a run, and the samples of one group."""

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api import parameters
from api.bodies import render
from api.operations import JSON, MSGPACK, NAME_PATTERN, Answer, Operation, Parameter
from api.problems import Problem
from api.references import group_of, id_parameter, run_of
from api.service import service_of
from prorl_mq.errors import NotFound
from prorl_mq.schema.ids import public
from prorl_mq.service import groups, inspect
from prorl_mq.service.groups import GroupPage, GroupView

PAGE: Final = 200
LISTS: Final = {"open": groups.open_groups, "closed": groups.closed_groups}


async def listing(request: Request) -> Response:
    store, run = service_of(request).store, run_of(request)
    state, batch = request.query_params.get("state", "open"), request.query_params.get("batch")
    if state not in LISTS:
        raise Problem(422, f"the parameter 'state' is {state[:96]!r}: it must be open or closed", field="state")
    if batch is not None and not re.fullmatch(NAME_PATTERN, batch):
        raise Problem(422, f"the parameter 'batch' is {batch[:96]!r}: it must be a batch's name", field="batch")
    after, limit = parameters.cursor(request), parameters.whole(request, "limit", 50, 1, PAGE)
    if not await inspect.run_exists(store, run):
        raise NotFound(f"there is no run {public(run)!r}: submit a batch first")
    return render(request, await LISTS[state](store, run, batch=batch, after=after, limit=limit))


async def one(request: Request) -> Response:
    return render(request, await groups.group(service_of(request).store, group_of(request)))


STATE: Final = Parameter(
    name="state",
    where="query",
    schema={"enum": ["open", "closed"], "default": "open"},
    description="Groups without a verdict, in no order; or those with one, the newest first, until acknowledged",
)
BATCH: Final = Parameter(
    name="batch",
    where="query",
    schema={"type": "string", "pattern": NAME_PATTERN},
    description="Only groups of this batch",
)
AFTER: Final = Parameter(
    name="after",
    where="query",
    schema={"type": "string", "pattern": "^[0-9]{1,19}(-[0-9]{1,19})?$", "default": "0"},
    description="`next` of the page before",
)
LIMIT: Final = Parameter(
    name="limit",
    where="query",
    schema={"type": "integer", "minimum": 1, "maximum": PAGE, "default": 50},
    description="Approximate number of groups in one answer",
)
BOTH: Final = (JSON, MSGPACK)

OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/runs/{run}/groups",
        id="list_groups",
        tag="groups",
        summary="The groups of a run: how many of their samples have ended, and with which rewards",
        endpoint=listing,
        parameters=(id_parameter("run", "run"), STATE, BATCH, AFTER, LIMIT),
        answers={200: Answer(description="A page of them", body=GroupPage, media_types=BOTH)},
        errors=(404, 422, 503),
    ),
    Operation(
        method="GET",
        path="/v1/groups/{id}",
        id="group_status",
        tag="groups",
        summary="One group with all its samples",
        endpoint=one,
        parameters=(id_parameter("group"),),
        answers={200: Answer(description="As it is now", body=GroupView, media_types=BOTH)},
        errors=(404, 422, 503),
    ),
)
