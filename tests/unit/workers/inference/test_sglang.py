"""SGLang's protocol, against its routes as they are defined: every field that it does not know is refused."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.wire import SGLANG_GENERATE
from tests.unit.workers.inference.conftest import PROMPT, cancelled, info, request
from workers.inference.assignment import Endpoint, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.logprobs import LogprobMode
from workers.inference.probe import probe
from workers.inference.protocol import BackendRefused, ContextFull
from workers.inference.protocols.abort import sglang_id

pytestmark = pytest.mark.anyio
SGLANG = WireProtocol.SGLANG_GENERATE


@pytest.fixture
async def sglang() -> AsyncIterator[FakeBackend]:
    async with FakeBackend(routes={SGLANG_GENERATE}) as made:
        yield made


def about(backend: FakeBackend, **changes: object) -> Endpoint:
    return info(backend, SGLANG, context_tokens=backend.context_tokens, **changes)


async def test_it_is_found_with_log_probabilities_that_the_temperature_alone_has_scaled(
    clients: InferenceClients, sglang: FakeBackend
) -> None:
    found = await probe(clients, sglang.address)
    assert found.info == about(sglang, logprobs=LogprobMode.SCALED)
    assert found.version == "default"


async def test_its_environment_variable_for_raw_ones_is_noticed(clients: InferenceClients, sglang: FakeBackend) -> None:
    sglang.logprobs_mode = "raw"
    assert (await probe(clients, sglang.address)).info.logprobs is LogprobMode.RAW


async def test_a_field_that_it_does_not_define_is_refused(clients: InferenceClients, sglang: FakeBackend) -> None:
    """The control of all tests here: were a field of ours misspelt, they would fail like this."""
    body = msgspec.json.encode({"input_ids": PROMPT, "sampling_params": {"max_tokens": 8}})
    assert (await clients.transport.post(sglang.address, "/generate", body)).status == 400


async def test_a_length_beyond_its_context_is_cut_where_it_would_refuse_the_call(
    clients: InferenceClients, sglang: FakeBackend
) -> None:
    sglang.context_tokens = 12
    answer = await clients.generate(about(sglang), request(max_tokens=100))
    assert (len(answer.ids), answer.finish_reason) == (12 - len(PROMPT) - 1, "length")
    with pytest.raises(ContextFull):
        await clients.generate(info(sglang, SGLANG), request(max_tokens=100))  # the context is not known: the control
    with pytest.raises(ContextFull, match="fills its context of 12"):
        await clients.generate(about(sglang), request(prompt_ids=[1] * 11))


async def test_an_abort_by_id_keeps_the_partial_ids_and_takes_no_longer_id_along(
    clients: InferenceClients, sglang: FakeBackend
) -> None:
    """SGLang aborts every request whose id begins with what it is told."""
    sglang.latency_ms = 60_000
    calls = [
        asyncio.create_task(clients.generate(about(sglang), request(request_id=f"job-c{number}", max_tokens=100)))
        for number in (1, 10)
    ]
    await sglang.wait_running(2)
    await clients.abort(about(sglang), "job-c1")
    cut = await calls[0]
    assert cut.finish_reason == "abort"
    assert len(cut.ids) == len(cut.logprobs) < 100
    assert sglang.running == 1
    await clients.transport.post(sglang.address, "/abort_request", b'{"rid": "job-c1"}')
    assert (await calls[1]).finish_reason == "abort", "without an end the id takes the other along: the control"
    assert sglang.aborts == [sglang_id("job-c1"), "job-c1"]


async def test_cancelling_tells_it_to_stop(clients: InferenceClients, sglang: FakeBackend) -> None:
    sglang.latency_ms = 60_000
    call = asyncio.create_task(clients.generate(about(sglang), request()))
    await sglang.wait_running(1)
    assert await cancelled(call)
    await sglang.wait_running(0)
    assert sglang.aborts == [sglang_id("job-1-t1")]


async def test_without_spans_a_version_is_known_where_the_answer_before_told_the_same(
    clients: InferenceClients, sglang: FakeBackend
) -> None:
    """Older releases tell the version at the end alone: one that is new there says nothing of the beginning."""
    sglang.old_shape = True
    versions = []
    for version in ("7", "7", "8", "8"):
        sglang.set_version(version)
        versions.append((await clients.generate(about(sglang), request())).version)
    assert versions == [None, ("7", "7"), None, ("8", "8")]


async def test_an_error_that_it_reports_as_an_abort_is_no_completion(
    clients: InferenceClients, sglang: FakeBackend
) -> None:
    answer = {"meta_info": {"finish_reason": {"type": "abort", "message": "bad grammar", "status_code": 400}}}

    async def answered(_request: object) -> object:
        from prorl_mq.process.http_server import HttpResponse

        return HttpResponse(body=msgspec.json.encode(answer))

    sglang.server.handler = answered  # type: ignore[assignment]
    with pytest.raises(BackendRefused, match="aborted the call with 400: bad grammar"):
        await clients.generate(about(sglang), request())


async def test_an_adapter_is_named_in_its_own_field(clients: InferenceClients, sglang: FakeBackend) -> None:
    sglang.load_adapter("skill@3", "/weights/3")
    await clients.generate(about(sglang, adapter="skill@3"), request())
    assert sglang.requests[0].call.raw["lora_path"] == "skill@3"
