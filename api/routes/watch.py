"""The whole service as it is now, and an event stream that says which jobs have changed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from api.live import entry_id
from api.operations import operation
from api.problems import Problem
from api.request.bodies import EVENT_STREAM
from api.request.parameters import cursor, text, whole
from api.request.waiting import until_draining
from api.service import Service
from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import TenantId, public
from prorl_mq.service.changes import ChangedJob
from prorl_mq.service.overview import Overview

VIEWERS: Final = 64  # of one process
TICK_S: Final = 5.0
LONGEST_S: Final = 3600
TOPIC: Final = r"[A-Za-z0-9_.\-]{1,96}(:[A-Za-z0-9_.\-]{1,96}(:[0-9]{1,6})?)?"
NEWEST: Final = 32  # changes in one message at most
ABOUT_TOPIC: Final = "The id of a run, a group or a job: only what is below it; nothing: all of the caller's jobs"
AFTER: Final = "The id of the last message that the caller has; 0 or nothing starts now"
SECONDS: Final = "How long the stream lasts at most; resume with Last-Event-ID"
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


@operation("GET", "/v1/overview")
async def overview(service: Service) -> Overview:
    """Work that waits and runs in each stage and on each node, and how fast; a second old at most."""
    return await service.overview.get()


@operation(
    "GET",
    "/v1/watch",
    answers={200: "Each `changes` has the newest ones"},
    returns=Changes,
    media_types=(EVENT_STREAM,),
    errors=(429,),
)
async def watch(
    service: Service,
    tenant: TenantId,
    topic: Annotated[str | None, text(f"({TOPIC})?", "the id of a run, group or job", ABOUT_TOPIC)] = None,
    after: Annotated[str, cursor(AFTER, resumed=True)] = "0",
    seconds: Annotated[int, whole(0, LONGEST_S, SECONDS)] = LONGEST_S,
) -> Response:
    """An event stream: `changes` of jobs, `reset` where some were missed, a `tick` every few seconds."""
    if service.follower.viewers >= VIEWERS:
        detail = f"{VIEWERS} viewers are already connected to this process: close a page, or try again"
        raise Problem(429, detail, kind="over-quota", headers={"Retry-After": "5"})
    messages = _messages(service, tenant, topic or "", after, seconds)
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
                    yield _message(last, b"changes", msgspec.json.encode(_newest(about)))
                cursor = last
            if not await until_draining(service, _set(moved, min(TICK_S, ends - monotonic()))):
                yield _message(cursor, b"tick", b"{}")


async def _set(event: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            return await event.wait()
    except TimeoutError:
        return False


def _about(changes: Sequence[ChangedJob], topic: str) -> list[ChangedJob]:
    return [each for each in changes if each.ref == topic or each.ref.startswith(f"{topic}:")]


def _newest(changes: Sequence[ChangedJob]) -> Changes:
    newest = [
        JobChange(
            job_id=public(each.ref),
            ms=each.ms,
            event=each.event,
            stage=each.stage,
            worker=each.worker,
            detail=each.detail,
        )
        for each in changes[-NEWEST:]
    ]
    return Changes(count=len(changes), changes=newest)


def _message(cursor: tuple[int, int] | None, kind: bytes, data: bytes) -> bytes:
    name = b"id: %d-%d\n" % cursor if cursor else b""
    return b"%bevent: %b\ndata: %b\n\n" % (name, kind, data)
