"""Live changes: an event stream that says which jobs have changed."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api import parameters
from api.following import entry_id
from api.operations import EVENT_STREAM, Answer, Operation, Parameter
from api.problems import Problem
from api.service import Service, service_of, tenant_of
from api.waiting import until_draining
from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import public
from prorl_mq.service.changes import ChangedJob

VIEWERS: Final = 64  # of one process
TICK_S: Final = 5.0
LONGEST_S: Final = 3600
TOPIC_PATTERN: Final = r"[A-Za-z0-9_.\-]{1,96}(:[A-Za-z0-9_.\-]{1,96}(:[0-9]{1,6})?)?"
TOLD: Final = 32  # changes in one message at most, the newest
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """One state change of one job."""

    job_id: str
    ms: int
    event: str
    stage: str
    worker: str
    detail: str


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The newest of the `count` changes since the message before."""

    count: int
    changes: Sequence[JobChange]


async def watch(request: Request) -> Response:
    service = service_of(request)
    topic = _topic(request)
    cursor = parameters.cursor(request)
    if service.follower.viewers >= VIEWERS:
        detail = f"{VIEWERS} viewers are already connected to this process: close a page, or try again"
        raise Problem(429, detail, kind="over-quota", headers={"Retry-After": "5"})
    seconds = parameters.whole(request, "seconds", LONGEST_S, 0, LONGEST_S)
    messages = _messages(service, tenant_of(request), topic, cursor, seconds)
    return StreamingResponse(messages, media_type=EVENT_STREAM, headers=HEADERS)


async def _messages(service: Service, tenant: str, topic: str, after: str, seconds: int) -> AsyncIterator[bytes]:
    follower, ends = service.follower, monotonic() + seconds
    cursor = entry_id(after) if after != "0" else None
    with follower.viewing():
        yield b"retry: 1000\n\n"
        while not service.draining.is_set() and monotonic() < ends:
            moved = follower.moved
            if (last := follower.last) is not None:
                found = None if cursor is None else follower.since(cursor, tenant)
                if found is None:
                    yield _message(last, b"reset", b"{}")
                elif about := _about(found, f"{tenant}:{topic}" if topic else tenant):
                    yield _message(last, b"changes", msgspec.json.encode(_told(about)))
                cursor = last
            if not await until_draining(service, _set(moved, min(TICK_S, ends - monotonic()))):
                yield _message(cursor, b"tick", b"{}")


async def _set(event: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            return await event.wait()
    except TimeoutError:
        return False


def _topic(request: Request) -> str:
    topic = request.query_params.get("topic", "")
    if topic and not re.fullmatch(TOPIC_PATTERN, topic):
        raise Problem(422, f"the parameter 'topic' is {topic[:96]!r}: it must be the id of a run, group or job",
                      field="topic")  # fmt: skip
    return topic


def _about(changes: Sequence[ChangedJob], topic: str) -> list[ChangedJob]:
    return [each for each in changes if each.ref == topic or each.ref.startswith(f"{topic}:")]


def _told(changes: Sequence[ChangedJob]) -> Changes:
    newest = [
        JobChange(
            job_id=public(each.ref),
            ms=each.ms,
            event=each.event,
            stage=each.stage,
            worker=each.worker,
            detail=each.detail,
        )
        for each in changes[-TOLD:]
    ]
    return Changes(count=len(changes), changes=newest)


def _message(cursor: tuple[int, int] | None, kind: bytes, data: bytes) -> bytes:
    name = b"id: %d-%d\n" % cursor if cursor else b""
    return b"%bevent: %b\ndata: %b\n\n" % (name, kind, data)


TOPIC: Final = Parameter(
    name="topic",
    where="query",
    schema={"type": "string", "pattern": f"^({TOPIC_PATTERN})?$"},
    description="The id of a run, a group or a job: only what is below it; nothing: all of the caller's jobs",
)
SECONDS: Final = Parameter(
    name="seconds",
    where="query",
    schema={"type": "integer", "minimum": 0, "maximum": LONGEST_S, "default": LONGEST_S},
    description="How long the stream lasts at most; resume with Last-Event-ID",
)
AFTER: Final = Parameter(
    name="after",
    where="query",
    schema={"type": "string", "pattern": "^[0-9]{1,19}(-[0-9]{1,19})?$", "default": "0"},
    description="The id of the last message that the caller has; 0 or nothing starts now",
)
LAST_EVENT_ID: Final = Parameter(
    name="Last-Event-ID",
    where="header",
    schema={"type": "string", "pattern": "^[0-9]{1,19}(-[0-9]{1,19})?$"},
    description="Sent by a reconnecting event source; takes precedence over `after`",
)

OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/watch",
        id="watch",
        tag="watching",
        summary="An event stream: `changes` of jobs, `reset` where some were missed, a `tick` every few seconds",
        endpoint=watch,
        parameters=(TOPIC, AFTER, SECONDS, LAST_EVENT_ID),
        answers={
            200: Answer(description="Each `changes` has the newest ones", body=Changes, media_types=(EVENT_STREAM,))
        },
        errors=(422, 429, 503),
    ),
)
