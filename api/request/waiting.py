"""Requests that wait: event streams have a place each, and what is waited for ends when its caller leaves."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api.callers import Callers
from api.places import Holding
from api.request.bodies import EVENT_STREAM
from api.service import Service
from prorl_mq.process.connections import connection_of
from prorl_mq.schema.ids import TenantId

HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
T = TypeVar("T")


Gone = asyncio.Future[None]  # its caller has left


class Leaving:
    """A context whose value is done when the caller of a request has left, or its token opens nothing any more.
    Thousands of requests have one at a time: its connection tells it, where that is one of ours, so that no task waits.
    """

    __slots__ = ("_callers", "_gone")

    def __init__(self, scope: Scope, receive: Receive, callers: Callers, tenant: TenantId) -> None:
        connection = connection_of(scope)
        self._gone = asyncio.create_task(_left(receive)) if connection is None else connection.ending()
        self._callers = callers
        callers.waiting[self._gone] = tenant

    def __enter__(self) -> Gone:
        return self._gone

    def __exit__(self, *_: object) -> None:
        self._callers.waiting.pop(self._gone, None)
        self._gone.cancel()


class EventStream(StreamingResponse):
    """Server-sent events. Raises `Problem` (429) where there is no place for them; they have one until they end.

    `messages` ends when its argument is done: the caller has left.
    """

    def __init__(self, service: Service, tenant: TenantId, messages: Callable[[Gone], AsyncIterator[bytes]]) -> None:
        super().__init__((), media_type=EVENT_STREAM, headers=HEADERS)
        self._callers, self._messages, self._holding = service.callers, messages, Holding(tenant)
        self._holding.take(service.streams)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._holding, Leaving(scope, receive, self._callers, self._holding.tenant) as gone:
            self.body_iterator = self._messages(gone)
            await self.stream_response(send)


async def until_gone(request: Request, work: Coroutine[Any, Any, T], *ends: Coroutine[Any, Any, object]) -> T | None:
    """The work's answer, or None if the caller leaves, or one of `ends` comes, first."""
    task = asyncio.create_task(work)
    others = [asyncio.create_task(end) for end in (_left(request.receive), *ends)]
    try:
        await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, *others):
            each.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
