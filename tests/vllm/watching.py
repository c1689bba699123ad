"""What a running vLLM tells of itself."""

import asyncio
import time

from workers.inference.clients import InferenceClients


async def metric(clients: InferenceClients, address: str, name: str) -> float:
    """The sum of a metric's series."""
    text = (await clients.transport.get(address, "/metrics")).body.decode()
    lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def until_running(clients: InferenceClients, address: str, count: int) -> float:
    """Seconds until vLLM counts so many requests under way: its metrics are asked again and again."""
    started = time.perf_counter()
    async with asyncio.timeout(100):
        while await metric(clients, address, "vllm:num_requests_running") != count:
            pass
    return time.perf_counter() - started


async def until_sampled(clients: InferenceClients, address: str, count: int) -> None:
    """Returns once vLLM has sampled so many tokens more than now."""
    name = "vllm:generation_tokens_total"
    wanted = await metric(clients, address, name) + count
    async with asyncio.timeout(60):
        while await metric(clients, address, name) < wanted:
            pass
