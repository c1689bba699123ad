"""The whole service as it is now, and an event stream that says which jobs have changed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Final

import msgspec
from starlette.responses import Response

from api.live import Follower, StreamId, entry_id
from api.operations import operation
from api.request.bodies import EVENT_STREAM
from api.request.parameters import cursor, text, whole
from api.request.waiting import EventStream, Gone
from api.service import Service
from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import TenantId, public
from prorl_mq.service.advice.bottleneck import Advice
from prorl_mq.service.changes import change_of
from prorl_mq.service.overview import Overview

TICK_S: Final = 5.0
LONGEST_S: Final = 3600
TOPIC: Final = r"[A-Za-z0-9_.\-]{1,96}(:[A-Za-z0-9_.\-]{1,96}(:[0-9]{1,6})?)?"
NEWEST: Final = 32  # changes in one message at most
ABOUT_TOPIC: Final = "The id of a run, a group or a job: only what is below it; nothing: all of the caller's jobs"
AFTER: Final = "The id of the last message that the caller has; 0 or nothing starts now"
SECONDS: Final = "How long the stream lasts at most; resume with Last-Event-ID"


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


@operation("GET", "/v1/advice")
async def advice(service: Service, tenant: TenantId) -> Advice:
    """One sentence on what limits the service now, with its figures, and what to change; a second old at most."""
    return await service.advice(tenant).get()


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
)
async def watch(
    service: Service,
    tenant: TenantId,
    topic: Annotated[str | None, text(f"({TOPIC})?", "the id of a run, group or job", ABOUT_TOPIC)] = None,
    after: Annotated[str, cursor(AFTER, resumed=True)] = "0",
    seconds: Annotated[int, whole(0, LONGEST_S, SECONDS)] = LONGEST_S,
) -> Response:
    """An event stream: `changes` of jobs, `reset` where some were missed, a `tick` every few seconds."""
    return EventStream(service, tenant, partial(_messages, service, tenant, topic or "", after, seconds))


async def _messages(
    service: Service, tenant: str, topic: str, after: str, seconds: int, gone: Gone
) -> AsyncIterator[bytes]:
    follower, ends = service.follower, monotonic() + seconds
    cursor = entry_id(after) if after != "0" else None
    with follower.viewing():
        yield b"retry: 1000\n\n"
        while not (service.draining.is_set() or gone.done()) and monotonic() < ends:
            moved = follower.moved
            if (last := follower.last) is not None:
                if message := _told(follower, cursor, tenant, topic):
                    yield message
                cursor = last
            left_s = min(TICK_S, ends - monotonic())
            done, _ = await asyncio.wait([moved, gone], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                yield _message(cursor, b"tick", b"{}")


def _told(follower: Follower, cursor: StreamId | None, tenant: str, topic: str) -> bytes:
    """The message about what has changed after a cursor; empty if nothing below the topic has."""
    lines = None if cursor is None else follower.since(cursor, tenant)
    if lines is None:
        return _message(follower.last, b"reset", b"{}")
    below = (f"{tenant}:{topic}:", f"{tenant}:{topic}\t") if topic else ""

    def changes() -> bytes:
        about = [line for line in lines if line.startswith(below)]
        return _message(follower.last, b"changes", msgspec.json.encode(_newest(about))) if about else b""

    return follower.shared((cursor, tenant, topic), changes)


def _newest(lines: Sequence[str]) -> Changes:
    newest = [
        JobChange(
            job_id=public(each.ref),
            ms=each.ms,
            event=each.event,
            stage=each.stage,
            worker=each.worker,
            detail=each.detail,
        )
        for each in filter(None, map(change_of, lines[-NEWEST:]))
    ]
    return Changes(count=len(lines), changes=newest)


def _message(cursor: StreamId | None, kind: bytes, data: bytes) -> bytes:
    name = b"id: %d-%d\n" % cursor if cursor else b""
    return b"%bevent: %b\ndata: %b\n\n" % (name, kind, data)
