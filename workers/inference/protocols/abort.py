"""Tells a backend to abort a request.

Closing the connection aborts it too, but only where no proxy stands between, and the ids sampled so far are lost; a
call that is aborted by its id answers with them. Best effort: a failure changes nothing.
"""

import asyncio
from typing import Any, Final

import msgspec

from workers.inference.assignment import Endpoint, WireProtocol
from workers.inference.protocol import InferenceError
from workers.inference.transport import HttpTransport

# vLLM's second is all that it has up to 0.31, in dev mode. It aborts everything when it is sent no ids: never do that.
ROUTES: Final[dict[WireProtocol, tuple[str, ...]]] = {
    WireProtocol.VLLM_GENERATE: ("/inference/v1/abort_requests", "/abort_requests"),
    WireProtocol.SGLANG_GENERATE: ("/abort_request",),
}
SERVER_PREFIX = "generate-tokens-"  # vLLM puts it before our id; an id without it aborts nothing, and answers 200


def sglang_id(request_id: str) -> str:
    """The id of a request as SGLang is told it. It aborts by prefix: without an end, call 1 takes call 10 along."""
    return f"{request_id}."


def _body(protocol: WireProtocol, request_id: str) -> dict[str, Any]:
    if protocol is WireProtocol.SGLANG_GENERATE:
        return {"rid": sglang_id(request_id), "abort_all": False}
    return {"request_ids": [SERVER_PREFIX + request_id]}


class Aborter:
    """Posts aborts, each bounded in time and shielded from a second cancellation of its caller."""

    def __init__(self, transport: HttpTransport, *, within_s: float = 1.0) -> None:
        self._transport = transport
        self._within_s = within_s
        self._routes: dict[str, tuple[str, ...]] = {}  # by address, those that are not known to be missing
        self._tasks: set[asyncio.Task[None]] = set()

    async def abort(self, backend: Endpoint, request_id: str) -> None:
        """Returns when the backend has answered or the time is up. A route that it lacks is asked for once."""
        if not self._known(backend):
            return
        task = asyncio.create_task(self._post(backend, request_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait({task})

    async def aclose(self) -> None:
        """Waits for what is under way, at most `within_s`."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _known(self, backend: Endpoint) -> tuple[str, ...]:
        return self._routes.get(backend.address, ROUTES.get(backend.protocol, ()))

    async def _post(self, backend: Endpoint, request_id: str) -> None:
        body = msgspec.json.encode(_body(backend.protocol, request_id))
        try:
            async with asyncio.timeout(self._within_s):
                for route in self._known(backend):
                    answer = await self._transport.post(backend.address, route, body, repeatable=True)
                    if answer.status not in {403, 404, 405}:
                        return
                    self._routes[backend.address] = tuple(each for each in self._known(backend) if each != route)
        except (InferenceError, TimeoutError):
            return
