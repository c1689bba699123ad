"""Tells a vLLM backend to abort a request.

Closing the connection aborts it too, but only where no proxy stands between, and the ids sampled so far are lost; a
call that is aborted by its id answers with them. Best effort: a failure changes nothing.
"""

import asyncio

import msgspec

from workers.inference.protocol import InferenceError
from workers.inference.transport import HttpTransport

# The second is all that vLLM has up to 0.31, in dev mode. It aborts everything when it is sent no ids: never do that.
ROUTES = ("/inference/v1/abort_requests", "/abort_requests")
SERVER_PREFIX = "generate-tokens-"  # vLLM puts it before our id; an id without it aborts nothing, and answers 200


class Aborter:
    """Posts aborts, each bounded in time and shielded from a second cancellation of its caller."""

    def __init__(self, transport: HttpTransport, *, within_s: float = 1.0) -> None:
        self._transport = transport
        self._within_s = within_s
        self._routes: dict[str, tuple[str, ...]] = {}  # by address, those that are not known to be missing
        self._tasks: set[asyncio.Task[None]] = set()

    async def abort(self, address: str, request_id: str) -> None:
        """Returns when the backend has answered or the time is up. A route that it lacks is asked for once."""
        if not self._routes.get(address, ROUTES):
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
                for route in self._routes.get(address, ROUTES):
                    answer = await self._transport.post(address, route, body, repeatable=True)
                    if answer.status not in {403, 404, 405}:
                        return
                    self._routes[address] = tuple(each for each in self._routes.get(address, ROUTES) if each != route)
        except (InferenceError, TimeoutError):
            return
