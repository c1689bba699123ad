"""How soon a cancelled call has stopped in the engine."""

import asyncio
import contextlib
import time
from typing import Any

from workers.inference.assignment import Endpoint
from workers.inference.clients import InferenceClients
from workers.inference.protocol import Completion
from workers.inference.request import GenerateRequest

RUNNING = "vllm:num_requests_running"


async def running(clients: InferenceClients, address: str) -> float:
    text = (await clients.transport.get(address, "/metrics")).body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(RUNNING))


async def under_way(clients: InferenceClients, backend: Endpoint) -> asyncio.Task[Completion]:
    """A long call that the engine works on. A sampled end may come early: then there is another one."""
    while True:
        request = GenerateRequest(
            request_id=f"cancel-{time.monotonic_ns()}", session_id="cancel", prompt_ids=list(range(20, 60)),
            max_tokens=3500, temperature=1.0,
        )  # fmt: skip
        call = asyncio.create_task(clients.generate(backend, request))
        while not call.done():
            if await running(clients, backend.address):
                return call
        await call  # raises what went wrong


async def cancelling(backend: Endpoint, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds from the cancel to the first look at vLLM's metrics that shows nothing running; looks included."""
    rows: list[dict[str, Any]] = []
    async with InferenceClients() as clients:
        for number in range(rounds):
            call = await under_way(clients, backend)
            started = time.perf_counter()
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
            answered = time.perf_counter()
            while await running(clients, backend.address):
                pass
            rows.append({
                "case": "cancel", "round": number, "aborted_ms": 1e3 * (answered - started),
                "stopped_ms": 1e3 * (time.perf_counter() - started),
            })  # fmt: skip
    return rows
