"""What a running vLLM tells of itself."""

import asyncio
import time

from workers.inference.clients import InferenceClients

RUNNING = "vllm:num_requests_running"


async def metric(clients: InferenceClients, address: str, *names: str) -> float:
    """The sum of all series of these metrics."""
    text = (await clients.transport.get(address, "/metrics")).body.decode()
    starts = tuple(f"{name}{end}" for name in names for end in " {")
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(starts))


async def begun(clients: InferenceClients, address: str) -> float:
    """How many requests vLLM has begun to sample, those included that have ended."""
    return await metric(clients, address, RUNNING, "vllm:request_success_total")


async def until_begun(clients: InferenceClients, address: str, count: float) -> None:
    async with asyncio.timeout(100):
        while await begun(clients, address) < count:
            pass


async def until_running(clients: InferenceClients, address: str, count: int) -> float:
    """Seconds until vLLM counts so many requests under way: its metrics are asked again and again."""
    started = time.perf_counter()
    async with asyncio.timeout(100):
        while await metric(clients, address, RUNNING) != count:
            pass
    return time.perf_counter() - started


async def until_sampled(clients: InferenceClients, address: str, count: int) -> None:
    """Returns once vLLM has sampled so many tokens more than now."""
    name = "vllm:generation_tokens_total"
    wanted = await metric(clients, address, name) + count
    async with asyncio.timeout(60):
        while await metric(clients, address, name) < wanted:
            pass
