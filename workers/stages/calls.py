"""The calls that this process has under way, so that they can be ended early.

A call to a backend that turned out to be dead, or whose weights are in doubt, is given up, and its job moves. Where new
weights are announced in mode `abort`, a call that began before is aborted: it answers with what it has sampled.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from prorl_mq.process import tracing
from prorl_mq.store.pools import PoolView
from workers.inference.assignment import Endpoint
from workers.inference.clients import InferenceClients
from workers.inference.protocol import Completion
from workers.inference.request import BackendClient, GenerateRequest
from workers.node.sweeping import repeat

LOOK_S: Final = 0.5  # between two looks, where no change is told
OPERATION: Final = "text_completion"


class _Call(NamedTuple):
    pool: str
    backend: Endpoint
    announcement: str  # in force when it began


class Calls:
    """Follows calls, and looks at the pools that they go to."""

    def __init__(
        self,
        clients: InferenceClients,
        view: Callable[[str], Awaitable[PoolView]],
        moved: Callable[[float], Awaitable[None]],
    ) -> None:
        """`moved` waits until a pool has changed, for so long at most."""
        self._clients = clients
        self._view = view
        self._moved = moved
        self._calls: dict[str, _Call] = {}  # by request id

    def of(self, pool: str) -> BackendClient:
        """A client whose calls are followed."""
        return _Followed(self, pool)

    def under_way(self) -> Counter[str]:
        """Calls of this process by address."""
        return Counter(call.backend.address for call in self._calls.values())

    async def run(self) -> None:
        """Looks until it is cancelled."""
        await repeat(self._look_next, every_s=0, what="look at calls")

    async def _look_next(self) -> None:
        await self._moved(LOOK_S)
        await self.look()

    async def look(self) -> None:
        """Ends what has to end."""
        for pool in {call.pool for call in self._calls.values()}:
            view = await self._view(pool)
            mine = {request_id: call for request_id, call in self._calls.items() if call.pool == pool}
            for address in {call.backend.address for call in mine.values()}:
                if (reason := view.unfit(address)) is not None:
                    self._clients.transport.give_up(address, reason)
            if view.policy.mode == "abort":
                await self._abort({at: call for at, call in mine.items() if call.announcement != view.policy.id})

    async def generate(self, pool: str, backend: Endpoint, request: GenerateRequest) -> Completion:
        announcement = (await self._view(pool)).policy.id
        self._calls[request.request_id] = _Call(pool, backend, announcement)
        try:
            with tracing.span(f"{OPERATION} {backend.model or ''}".rstrip(), client=True) as span:
                if span is not None:
                    span.set_attributes(_about(backend, request))
                completion = await self._clients.generate(backend, request)
                if span is not None:
                    span.set_attributes(_answered(completion))
                return completion
        finally:
            del self._calls[request.request_id]

    async def _abort(self, calls: dict[str, _Call]) -> None:
        async with asyncio.TaskGroup() as group:
            for request_id, call in calls.items():
                group.create_task(self._clients.abort(call.backend, request_id))


def _about(backend: Endpoint, request: GenerateRequest) -> dict[str, Any]:
    """OpenTelemetry's semantic conventions for generative AI."""
    url = urlsplit(backend.address)
    return {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": str(backend.protocol),
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "server.address": url.hostname or backend.address,
        "server.port": url.port or 80,
        **({"gen_ai.request.model": backend.model} if backend.model else {}),
    }


def _answered(completion: Completion) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": completion.prompt_tokens or 0,
        "gen_ai.usage.output_tokens": len(completion.ids),
        "gen_ai.response.finish_reasons": [completion.finish_reason],
    }


class _Followed:
    """Implements `BackendClient`."""

    def __init__(self, calls: Calls, pool: str) -> None:
        self._calls = calls
        self._pool = pool

    async def generate(self, backend: Endpoint, request: GenerateRequest) -> Completion:
        return await self._calls.generate(self._pool, backend, request)
