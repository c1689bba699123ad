"""Passes a request on to a cell, and its answer back as it comes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import aiohttp
import msgspec
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api.cells.cell import Cell, CellLost, passed
from api.cells.directory import Directory
from api.problems import Problem, unavailable
from api.request.waiting import until_gone

MOVED: Final = 421
FOLLOWED: Final = 4  # moves of a run that one request follows
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
OWN: Final = frozenset({"date", "server"})  # headers that the router's own server sends
MISDIRECTED: Final = 1 << 16  # bytes of an answer that says where a run is


class Misdirected(msgspec.Struct):
    """The member of a problem document that a cell answers with where another one has the run."""

    cell: str | None = None


async def passed_on(request: Request, directory: Directory, run: str, cell: Cell, body: bytes) -> Response:
    """The answer of the cell that has the run now. Raises `Problem` (503) where it does not answer: the request may
    have been carried out, and all of the interface may be repeated.
    """
    for _ in range(FOLLOWED):
        answer = await sent(request, cell, body)
        if answer.status_code == 404:
            directory.forget(run, request.headers)
        if answer.status_code != MOVED or not (name := _moved_to(answer)):
            return answer
        cell = await directory.moved(run, request.headers, cell, name)
    detail = f"run {run!r} was sent from cell to cell {FOLLOWED} times: try again, and look at `GET /v1/cells`"
    raise Problem(508, detail, kind="moved-in-circles")


async def sent(request: Request, cell: Cell, body: bytes) -> Response:
    """The answer of a cell, streamed unless it says that the run is elsewhere."""
    stack = AsyncExitStack()
    try:
        opened = cell.requested(request.method, target(request), request.headers, body)
        answer = await until_gone(request, stack.enter_async_context(opened))
    except CellLost as lost:
        await stack.aclose()
        raise unavailable(f"{lost}: only its runs wait; try again") from None
    if answer is None:
        return Response(status_code=400)  # nobody reads it
    if answer.status in REDIRECTS:
        await stack.aclose()
        to = answer.headers.get("Location", "")[:200]
        detail = f"cell {cell.name} answers with a redirect to {to!r}: name the address of its API in the router's file"
        raise Problem(502, detail, kind="redirected")
    headers = {name: value for name, value in passed(answer.headers).items() if name.lower() not in OWN}
    headers["X-Prorl-Cell"] = cell.name
    if answer.status == MOVED:
        async with stack:
            return Response(await answer.content.read(MISDIRECTED), MOVED, headers)
    if (length := answer.headers.get("Content-Length")) is not None:
        headers["Content-Length"] = length
    return StreamingResponse(_chunks(answer), answer.status, headers, background=BackgroundTask(stack.aclose))


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Closes the cell's request when the caller goes away."""
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    finally:
        answer.close()


def _moved_to(answer: Response) -> str | None:
    try:
        return msgspec.json.decode(answer.body, type=Misdirected).cell
    except msgspec.MsgspecError:
        return None


def target(request: Request) -> str:
    """Path and query as they were sent."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    query: bytes = request.scope["query_string"]
    return (raw.partition(b"?")[0] + (b"?" + query if query else b"")).decode("ascii", errors="replace")
