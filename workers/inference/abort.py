"""Tells a vLLM backend to abort a request whose caller is gone.

Closing the connection aborts it too, but only where no proxy stands between. This is the second way: best effort, its
failure changes nothing.
"""

import asyncio

import msgspec

from workers.inference.protocol import InferenceError
from workers.inference.transport import HttpTransport

ROUTE = "/inference/v1/abort_requests"
SERVER_PREFIX = "generate-tokens-"  # vLLM puts it before our id; an id without it aborts nothing, and answers 200


class Aborter:
    """Posts aborts, each bounded in time and shielded from a second cancellation of its caller."""

    def __init__(self, transport: HttpTransport, *, within_s: float = 1.0) -> None:
        self._transport = transport
        self._within_s = within_s
        self._without_route: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def abort(self, address: str, request_id: str) -> None:
        """Returns when the backend has answered or the time is up. Older vLLM has no such route: asked once."""
        if address in self._without_route:
            return
        task = asyncio.create_task(self._post(address, request_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait({task})

    async def aclose(self) -> None:
        """Waits for what is under way, at most `within_s`."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _post(self, address: str, request_id: str) -> None:
        body = msgspec.json.encode({"request_ids": [SERVER_PREFIX + request_id]})
        try:
            async with asyncio.timeout(self._within_s):
                answer = await self._transport.post(address, ROUTE, body)
        except (InferenceError, TimeoutError):
            return
        if answer.status in {403, 404, 405}:
            self._without_route.add(address)
