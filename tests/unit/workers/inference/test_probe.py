"""What an address turns out to be."""

import pytest

from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.wire import COMPLETIONS, PRORL_GENERATE, SGLANG_GENERATE, VLLM_GENERATE, FakeFault
from tests.unit.workers.inference.conftest import info
from workers.inference.__main__ import look
from workers.inference.assignment import WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.logprobs import LogprobMode
from workers.inference.probe import Probed, probe
from workers.inference.protocol import InferenceError

pytestmark = pytest.mark.anyio


async def test_the_token_route_is_preferred(clients: InferenceClients, backend: FakeBackend) -> None:
    backend.set_version("step-9")
    assert await probe(clients, backend.address + "/v1") == Probed(
        info=info(backend, context_tokens=32768),
        models=("policy",),
        version="step-9",
    )


@pytest.mark.parametrize(
    ("route", "protocol"), [(COMPLETIONS, WireProtocol.COMPLETIONS), (PRORL_GENERATE, WireProtocol.PRORL_GENERATE)]
)
async def test_a_backend_that_speaks_one_other_protocol_is_found(
    clients: InferenceClients, backend: FakeBackend, route: str, protocol: WireProtocol
) -> None:
    backend.routes = {route}
    assert (await probe(clients, backend.address)).info == info(backend, protocol, context_tokens=32768)


async def test_a_route_that_answers_nonsense_is_passed_over(clients: InferenceClients, backend: FakeBackend) -> None:
    backend.routes = {VLLM_GENERATE, COMPLETIONS}
    backend.fail_next(FakeFault.NO_LOGPROBS)
    assert (await probe(clients, backend.address)).info.protocol is WireProtocol.COMPLETIONS


async def test_raw_logprobs_are_noticed(clients: InferenceClients, backend: FakeBackend) -> None:
    """They ignore the temperature, so every importance ratio computed from them would be wrong."""
    backend.logprobs_mode = "raw"
    assert (await probe(clients, backend.address)).info.logprobs is LogprobMode.RAW


async def test_an_address_that_speaks_nothing_known_is_told_what_each_protocol_said(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    backend.routes = set()
    with pytest.raises(InferenceError, match=r"vllm-generate: .*--enable-scale-out.* prorl-generate: .*404"):
        await probe(clients, backend.address)


async def test_a_model_that_is_not_served_is_refused_by_name(clients: InferenceClients, backend: FakeBackend) -> None:
    with pytest.raises(InferenceError, match="it serves policy, not other"):
        await probe(clients, backend.address, model="other")


async def test_a_person_is_told_in_a_line_what_a_backend_is_or_why_it_cannot_be_used(
    backend: FakeBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.set_version("step-9")
    assert await look(backend.address) == 0
    assert capsys.readouterr().out == "speaks vllm-generate; serves policy; weights step-9\n"
    backend.logprobs_mode = "raw"
    assert await look(backend.address) == 1
    assert "start vLLM with --logprobs-mode processed_logprobs" in capsys.readouterr().out
    backend.routes = set()
    assert await look(backend.address) == 1
    assert "speaks no known protocol" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("route", "version", "said"),
    [
        (
            VLLM_GENERATE,
            "0.25.1",
            r"vLLM 0\.25\.1 is too old for vllm-generate: it takes 0\.26 or later .*; update it",
        ),
        (COMPLETIONS, "0.10.1", r"vLLM 0\.10\.1 is too old for completions: it takes 0\.10\.2 or later"),
        (SGLANG_GENERATE, "0.5.9", r"SGLang 0\.5\.9 is too old for sglang: it takes 0\.5\.10 or later"),
    ],
)
async def test_a_server_that_is_too_old_is_refused_by_its_version(
    clients: InferenceClients, backend: FakeBackend, route: str, version: str, said: str
) -> None:
    backend.routes, backend.engine_version = {route}, version
    with pytest.raises(InferenceError, match=said):
        await probe(clients, backend.address)


@pytest.mark.parametrize(
    ("version", "told"), [("0.32.0+cpu", "vLLM 0.32.0"), ("0.26.0", "vLLM 0.26.0"), ("0.1.dev9+g12", None), ("?", None)]
)
async def test_a_server_that_is_new_enough_or_of_no_release_is_used(
    clients: InferenceClients, backend: FakeBackend, version: str, told: str | None
) -> None:
    backend.engine_version = version
    assert (await probe(clients, backend.address)).server == told
