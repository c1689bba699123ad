"""The load that a real vLLM tells, as the health probe reads it."""

import asyncio

import pytest

from prorl_mq.duties.backend_control import BackendControl
from prorl_mq.rules.routing import metrics
from tests.unit.workers.inference.conftest import cancelled, request
from tests.vllm.watching import until_running
from workers.inference.clients import InferenceClients
from workers.inference.probe import Probed

pytestmark = pytest.mark.anyio


async def test_its_load_is_read_while_a_request_runs_and_afterwards(clients: InferenceClients, vllm: Probed) -> None:
    control, address = BackendControl(), vllm.info.address
    try:
        running = asyncio.create_task(clients.generate(vllm.info, request(prompt_ids=[30] * 500, max_tokens=3_000)))
        await until_running(clients, address, 1)
        busy = metrics.load(await control.load_lines(address), 1.0)
        await cancelled(running)
        await until_running(clients, address, 0)
        idle = metrics.load(await control.load_lines(address), 2.0)
    finally:
        await control.aclose()
    assert busy is not None
    assert idle is not None
    assert busy.capacity == idle.capacity > 100_000, "tokens of a gigabyte of cache"
    assert (busy.running, busy.waiting, busy.preempted) == (1, 0, 0)
    assert 500 / busy.capacity <= busy.usage + 1e-4
    assert (idle.running, idle.usage) == (0, 0.0)
