"""Closed groups to the trainer: as pages, as server-sent events, and their acknowledgement."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from api.operations import operation
from api.request.bodies import EVENT_STREAM, JSON, MSGPACK, render, wants
from api.request.parameters import cursor, number, whole
from api.request.waiting import EventStream, Gone, Leaving
from api.service import Service, holding_of
from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.ids import RunRef, TenantId
from prorl_mq.schema.intake import Cursor
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.schema.status import BatchReport
from prorl_mq.service import inspect
from prorl_mq.store import results, runs
from prorl_mq.store.results import Result
from prorl_mq.store.store import Store

LONGEST_WAIT_S: Final = 60
PAGE: Final = 1000
EVENTS_AT_ONCE: Final = 32
KEEP_ALIVE_S: Final = 10.0
AFTER: Final = "The cursor of the last result that the caller has; 0 or nothing starts with the oldest"


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


@operation(
    "GET",
    "/v1/runs/{run}/results",
    answers={200: "Groups, and reports of batches; as an event stream each is one event, its id the cursor"},
    returns=ResultsPage,
    media_types=(JSON, MSGPACK, EVENT_STREAM),
)
async def collect_results(
    request: Request,
    service: Service,
    tenant: TenantId,
    run: RunRef,
    after: Annotated[str, cursor(AFTER, resumed=True)] = "0",
    wait: Annotated[float, number(0, LONGEST_WAIT_S, "Seconds to wait for a first result")] = 0,
    limit: Annotated[int, whole(1, PAGE, "Groups and batches in one answer at most")] = 100,
) -> Response:
    """Closed groups in the order in which they closed, from a cursor on; each stays until acknowledged.

    A page, waited for if `wait` says so; or an event stream, if the caller accepts that.
    """
    await inspect.expect_run(service.store, run)
    if wants(request, EVENT_STREAM):
        return EventStream(service, tenant, partial(_events, service, run, after))
    if wait == 0:
        found, after = await results.page(service.store, run, after=after, limit=limit)
    else:
        holding = holding_of(request)
        with Leaving(request.scope, request.receive, service.callers, tenant) as gone:
            found, after = await service.new_results.collect(
                run, after=after, wait_s=wait, limit=limit, gone=gone,
                waits=lambda: holding.exchange(service.requests, service.polls),
            )  # fmt: skip
    return render(request, _page(found, after))


@operation("POST", "/v1/runs/{run}/ack")
async def acknowledge_results(store: Store, run: RunRef, ack: AckRequest) -> AckAnswer:
    """Delete results that the trainer has, with all that belongs to them."""
    await inspect.expect_run(store, run)
    return AckAnswer(acked=await results.acknowledge(store, run, ack.cursors))


async def _events(service: Service, run: RunRef, after: str, gone: Gone) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    try:
        while not (service.draining.is_set() or gone.done()):
            found, after = await service.new_results.collect(
                run, after=after, wait_s=KEEP_ALIVE_S, limit=EVENTS_AT_ONCE, gone=gone
            )
            if not found:
                if not await runs.exists(service.store, run):  # it has left for another cell
                    return
                yield b": keep-alive\n\n"
            for result in found:
                yield _event(result)
    except RedisUnavailable:
        yield b": Redis does not answer; connect again\n\n"  # the reader resumes after the last id that it saw


def _event(result: Result) -> bytes:
    record = msgspec.json.encode(msgspec.msgpack.decode(result.record))  # JSON has no line breaks of its own
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (result.cursor.encode(), _kind(result).encode(), record)


def _page(found: Sequence[Result], after: str) -> dict[str, Any]:
    """Like a `ResultsPage`, with every field that the writer of a record put there."""
    rows = [{"cursor": each.cursor, _kind(each): msgspec.msgpack.decode(each.record)} for each in found]
    return {"results": rows, "cursor": after}


def _kind(result: Result) -> str:
    return "batch" if result.of_batch else "group"
