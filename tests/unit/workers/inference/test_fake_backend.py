"""The fake backend behaves as the real one where tests rely on it."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE

import pytest

from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import scripted
from prorl_mq.testing.wire import FakeFault
from tests.unit.workers.inference.conftest import PROMPT, info, policy_over, request
from workers.inference.clients import InferenceClients

pytestmark = pytest.mark.anyio


async def test_a_script_goes_on_where_a_conversation_is(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend
) -> None:
    """Also on another backend, and with other conversations between."""
    backend.reply = other.reply = scripted([[5, 5, 2], [5, 5, 2], [9, 2]])
    policy = policy_over(clients, backend, other)
    prompt, said = list(PROMPT), []
    for turn in range(4):
        answer = await policy.generate(prompt, max_tokens=10, temperature=1.0)
        said.append(list(answer.ids))
        prompt = [*prompt, *answer.ids, 100 + turn]
        await clients.generate(info(backend), request())
        if turn == 1:
            backend.fail_next(FakeFault.ERROR)
    assert said == [[5, 5, 2], [5, 5, 2], [9, 2], [9, 2]]
    assert policy.moves == 1


async def test_two_backends_sample_the_same_for_the_same_request(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend
) -> None:
    first = await clients.generate(info(backend), request())
    second = await clients.generate(info(other), request())
    third = await clients.generate(info(other), request(seed=8))
    assert first.ids == second.ids != third.ids


async def test_an_abort_without_the_servers_prefix_does_nothing(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    backend.latency_ms = 60_000
    task = asyncio.create_task(clients.generate(info(backend), request(request_id="r1", max_tokens=100)))
    await backend.wait_running(1)
    route = "/inference/v1/abort_requests"
    await clients.transport.post(backend.address, route, b'{"request_ids": ["r1"]}')
    assert backend.running == 1
    await clients.transport.post(backend.address, route, b'{"request_ids": ["generate-tokens-r1"]}')
    answer = await task
    assert answer.finish_reason == "abort"
    assert len(answer.ids) == len(answer.logprobs) < 100


async def test_paused_requests_wait_and_new_weights_apply_on_resume(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    await clients.transport.post(backend.address, "/pause?mode=keep", b"")
    task = asyncio.create_task(clients.generate(info(backend), request()))
    await backend.wait_running(1)
    await clients.transport.post(backend.address, "/update_weight_version", b'{"new_version": "7"}')
    assert (await clients.transport.get(backend.address, "/weight_info")).body == (b'{"weight_version":"7"}')
    assert not task.done()
    await clients.transport.post(backend.address, "/resume", b"")
    assert (await task).version == ("7", "7")


async def test_a_backend_can_die_and_come_back_at_its_address(clients: InferenceClients, backend: FakeBackend) -> None:
    await clients.generate(info(backend), request())
    address = backend.address
    await backend.stop()
    await backend.start()
    assert backend.address == address
    await clients.generate(info(backend), request())


@pytest.mark.process
async def test_as_a_process_it_prints_its_address_and_ends_on_sigterm(clients: InferenceClients) -> None:
    command = ["-m", "prorl_mq.testing.fake_backend", "--port", "0", "--text", "hi", "--end-id", "999"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE)
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    try:
        backend = FakeBackend()
        backend.server.port = int(address.rpartition(":")[2])
        answer = await clients.generate(info(backend), request())
    finally:
        process.send_signal(signal.SIGTERM)
        code = await process.wait()
    assert (list(answer.ids), answer.finish_reason) == ([104, 105, 999], "stop")
    assert code == 0
