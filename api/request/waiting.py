"""Requests that wait: each ends early when its caller leaves or the process drains, and their number is bounded."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from starlette.requests import Request

from api.problems import Problem
from api.service import Service

T = TypeVar("T")


@contextlib.contextmanager
def poll_slot(service: Service) -> Iterator[None]:
    """A connection to wait on. Raises `Problem` (429) when all are taken."""
    most = service.settings.long_polls
    if service.polls >= most:
        detail = f"{most} requests are already waiting for results: try again, or follow one run with one request"
        raise Problem(429, detail, kind="over-quota", headers={"Retry-After": "1"})
    service.polls += 1
    try:
        yield
    finally:
        service.polls -= 1


async def until_draining(service: Service, work: Coroutine[Any, Any, T]) -> T | None:
    """The work's answer, or None if the process drains first."""
    return await _first(work, service.draining.wait())


async def until_gone(request: Request, service: Service, work: Coroutine[Any, Any, T]) -> T | None:
    """The work's answer, or None if the caller leaves or the process drains first."""
    return await _first(work, service.draining.wait(), _gone(request))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first(work: Coroutine[Any, Any, T], *ends: Coroutine[Any, Any, object]) -> T | None:
    task = asyncio.create_task(work)
    others = [asyncio.create_task(end) for end in ends]
    try:
        await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, *others):
            each.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)
