"""AnswerDelivery of an answer: whoever hung up before its end has not read it."""

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Piece = tuple[str, bool]  # a text, and whether the answer is whole with it


class AnswerDelivery(Response):
    """A response in pieces. `lost` is called once if the client leaves, or its sending is cancelled, before the end.

    Clients of streams close them when they have what they want: the end is the last piece, not what HTTP adds to it.
    """

    def __init__(self, pieces: AsyncIterator[Piece], lost: Callable[[], None], *, media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._pieces, self._lost = pieces, lost

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        whole = False

        async def told() -> None:
            nonlocal whole
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for text, last in self._pieces:
                whole = whole or (last and not gone.done())
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        gone = asyncio.ensure_future(_hung_up(receive))
        sending = asyncio.ensure_future(told())
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not whole:
                self._lost()
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
