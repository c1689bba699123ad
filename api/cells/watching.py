"""The event streams of all cells as one. An id of its messages has the place in each cell's."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from http import HTTPMethod
from typing import Final
from urllib.parse import urlencode

import aiohttp
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api.cells.cell import Cell, CellLost
from api.places import Holding, Places
from api.request.bodies import EVENT_STREAM
from api.request.waiting import HEADERS
from prorl_mq.schema.ids import TenantId

AGAIN_S: Final = 1.0  # until a cell that does not answer is asked again
HELD: Final = 16  # messages that a slow reader has not taken; then the cells wait
LARGEST: Final = 1 << 20  # bytes of one message
PLACE: Final = re.compile(r"([A-Za-z0-9_.\-]{1,96})=([0-9]{1,20}-[0-9]{1,20})")


class Stream(StreamingResponse):
    """An event stream that has a place until it ends. Answers 429 where there is none."""

    def __init__(self, messages: AsyncGenerator[bytes, None], streams: Places, tenant: TenantId) -> None:
        super().__init__(messages, media_type=EVENT_STREAM, headers=HEADERS)
        self._streams, self._holding = streams, Holding(tenant)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._holding:
            self._holding.take(self._streams)
            await super().__call__(scope, receive, send)


def places(cursor: str, names: Collection[str]) -> dict[str, str]:
    """The place in the stream of each cell that a combined id names; a strange id names none."""
    return {name: place for name, place in PLACE.findall(cursor) if name in names}


async def merged(
    cells: Sequence[Cell], headers: Mapping[str, str], after: str, seconds: float
) -> AsyncGenerator[bytes, None]:
    """The messages as they come. A cell that is lost is told once, as `lost` with its name, and is asked again."""
    queue = asyncio.Queue[tuple[str, str, bytes]](HELD)
    at, ends = places(after, {cell.name for cell in cells}), asyncio.get_running_loop().time() + seconds
    following = [asyncio.create_task(_follow(cell, headers, at.get(cell.name, ""), queue)) for cell in cells]
    try:
        yield b"retry: 1000\n\n"
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout_at(ends):
                    name, place, message = await queue.get()
                if place:
                    at[name] = place
                ids = ",".join(f"{cell}={each}" for cell, each in at.items())
                yield (f"id: {ids}\n".encode() if ids else b"") + message
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def _follow(
    cell: Cell, headers: Mapping[str, str], at: str, queue: "asyncio.Queue[tuple[str, str, bytes]]"
) -> None:
    """Puts messages into the queue, from the one after `at` on; what a slow reader has not taken is asked for once."""
    told = False
    while True:
        query = "?" + urlencode({"after": at}) if at else ""
        try:
            async with cell.requested(HTTPMethod.GET, f"/v1/watch{query}", headers) as answer:
                followed = answer.status == 200
                if followed:
                    told = False
                    async for place, message in _messages(answer):
                        at = place or at
                        await queue.put((cell.name, place, message))
        except (CellLost, aiohttp.ClientError, OSError):
            followed = False
        if not (followed or told):
            told = True
            await queue.put((cell.name, "", f'event: lost\ndata: {{"cell":"{cell.name}"}}\n\n'.encode()))
        await asyncio.sleep(AGAIN_S)


async def _messages(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, bytes]]:
    """Each message's id, and the rest of it."""
    kept = b""
    async for chunk in answer.content.iter_any():
        kept += chunk
        *whole, kept = kept.split(b"\n\n")
        for each in whole:
            lines = each.split(b"\n")
            place = next((line[4:].decode() for line in lines if line.startswith(b"id: ")), "")
            rest = [line for line in lines if not line.startswith((b"id: ", b"retry: "))]
            if rest:
                yield place, b"\n".join(rest) + b"\n\n"
        if len(kept) > LARGEST:
            return
