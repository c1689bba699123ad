"""Closed groups to the trainer: as pages, as server-sent events, and their acknowledgement."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api import parameters
from api.bodies import read_body, render, wants
from api.operations import EVENT_STREAM, JSON, MSGPACK, Answer, Operation, Parameter
from api.references import id_parameter, run_of
from api.service import Service, service_of
from api.waiting import poll_slot, until_draining, until_gone
from prorl_mq.errors import NotFound, RedisUnavailable
from prorl_mq.schema.ids import RunRef, public
from prorl_mq.schema.intake import Cursor
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.schema.status import BatchReport
from prorl_mq.service import inspect
from prorl_mq.store import results
from prorl_mq.store.results import Result

LONGEST_WAIT_S: Final = 60
PAGE: Final = 1000
EVENTS_AT_ONCE: Final = 32
KEEP_ALIVE_MS: Final = 10_000


class ResultEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A closed group, or the report of a closed batch, and its place in the run's results."""

    cursor: str
    group: GroupRecord | None = None
    batch: BatchReport | None = None


class ResultsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Closed groups and batches in the order of their closing. `cursor` is what to send as `after` next."""

    results: Sequence[ResultEntry]
    cursor: str


class AckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Results that the trainer has."""

    cursors: Annotated[Sequence[Cursor], Meta(max_length=10_000)]


class AckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Number of results that were deleted just now; a repeat deletes none."""

    acked: int


async def collect(request: Request) -> Response:
    """A page, waited for if `wait` says so; or an event stream, if the caller accepts that."""
    service, run = service_of(request), run_of(request)
    after = parameters.cursor(request)
    wait_s = parameters.number(request, "wait", 0.0, 0, LONGEST_WAIT_S)
    limit = parameters.whole(request, "limit", 100, 1, PAGE)
    if not await inspect.run_exists(service.store, run):
        raise NotFound(f"there is no run {public(run)!r}: submit a batch first")
    if wants(request, EVENT_STREAM):
        return StreamingResponse(_events(service, run, after), media_type=EVENT_STREAM, headers=NO_STORE)
    if wait_s == 0:
        found = await results.collect(service.store, run, after=after, limit=limit)
    else:
        with poll_slot(service):
            page = results.collect(service.store, run, after=after, wait_ms=int(wait_s * 1000), limit=limit)
            found = await until_gone(request, service, page) or []
    return render(request, _page(found, after))


async def acknowledge(request: Request) -> Response:
    service, run = service_of(request), run_of(request)
    body = await read_body(request, AckRequest)
    if not await inspect.run_exists(service.store, run):
        raise NotFound(f"there is no run {public(run)!r}: submit a batch first")
    return render(request, AckAnswer(acked=await results.acknowledge(service.store, run, body.cursors)))


NO_STORE: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def _events(service: Service, run: RunRef, after: str) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    try:
        with poll_slot(service):
            while not service.draining.is_set():
                page = results.collect(service.store, run, after=after, wait_ms=KEEP_ALIVE_MS, limit=EVENTS_AT_ONCE)
                found = await until_draining(service, page)
                if not found:
                    yield b": keep-alive\n\n"
                for result in found or ():
                    yield _event(result)
                    after = result.cursor
    except RedisUnavailable:
        yield b": Redis does not answer; connect again\n\n"  # the reader resumes after the last id that it saw


def _event(result: Result) -> bytes:
    record = msgspec.json.encode(msgspec.msgpack.decode(result.record))  # JSON has no line breaks of its own
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (result.cursor.encode(), _kind(result).encode(), record)


def _page(found: Sequence[Result], after: str) -> dict[str, Any]:
    """Like a `ResultsPage`, with every field that the writer of a record put there."""
    rows = [{"cursor": each.cursor, _kind(each): msgspec.msgpack.decode(each.record)} for each in found]
    return {"results": rows, "cursor": found[-1].cursor if found else after}


def _kind(result: Result) -> str:
    return "batch" if result.of_batch else "group"


AFTER = Parameter(
    name="after",
    where="query",
    schema={"type": "string", "pattern": "^[0-9]{1,19}(-[0-9]{1,19})?$", "default": "0"},
    description="The cursor of the last result that the caller has; 0 or nothing starts with the oldest",
)
WAIT = Parameter(
    name="wait",
    where="query",
    schema={"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_S, "default": 0},
    description="Seconds to wait for a first result",
)
LIMIT = Parameter(
    name="limit",
    where="query",
    schema={"type": "integer", "minimum": 1, "maximum": PAGE, "default": 100},
    description="Groups and batches in one answer at most",
)
LAST_EVENT_ID = Parameter(
    name="Last-Event-ID",
    where="header",
    schema={"type": "string", "pattern": "^[0-9]{1,19}(-[0-9]{1,19})?$"},
    description="Sent by a reconnecting event source; takes precedence over `after`",
)

OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/runs/{run}/results",
        id="collect_results",
        tag="results",
        summary="Closed groups in the order in which they closed, from a cursor on; each stays until acknowledged",
        endpoint=collect,
        parameters=(id_parameter("run", "run"), AFTER, WAIT, LIMIT, LAST_EVENT_ID),
        answers={
            200: Answer(
                description="Groups, and reports of batches; as an event stream each is one event, its id the cursor",
                body=ResultsPage,
                media_types=(JSON, MSGPACK, EVENT_STREAM),
            )
        },
        errors=(404, 422, 429, 503),
    ),
    Operation(
        method="POST",
        path="/v1/runs/{run}/ack",
        id="acknowledge_results",
        tag="results",
        summary="Delete results that the trainer has, with all that belongs to them",
        endpoint=acknowledge,
        parameters=(id_parameter("run", "run"),),
        body=AckRequest,
        answers={200: Answer(description="They are gone", body=AckAnswer, media_types=(JSON, MSGPACK))},
        errors=(400, 404, 413, 415, 422, 503),
    ),
)
