"""A model's own `generation_config.json` never changes what is sampled: every parameter is sent, whatever its value."""

import os

import msgspec
import pytest

from tests.unit.workers.inference.conftest import request
from workers.inference.assignment import WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.probe import Probed

pytestmark = pytest.mark.anyio
PROMPT = [20, 21, 22, 23, 24, 25, 26, 27]
ASKED = {"prompt": PROMPT, "logprobs": 1, "seed": 3, "return_token_ids": True}
NEUTRAL = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("protocol", [WireProtocol.VLLM_GENERATE, WireProtocol.COMPLETIONS])
async def test_what_is_sampled_is_what_explicit_neutral_parameters_sample(
    clients: InferenceClients, vllm: Probed, protocol: WireProtocol
) -> None:
    backend = msgspec.structs.replace(vllm.info, protocol=protocol)
    body = {
        "model": backend.model,
        "prompt": PROMPT,
        "max_tokens": 6,
        "logprobs": 1,
        "seed": 3,
        "return_token_ids": True,
    }
    raw = await clients.transport.post(backend.address, "/v1/completions", msgspec.json.encode(body | NEUTRAL))
    [wanted] = msgspec.json.decode(raw.body)["choices"]
    answer = await clients.generate(backend, request(prompt_ids=PROMPT, max_tokens=6, seed=3))
    assert (list(answer.ids), list(answer.logprobs)) == (wanted["token_ids"], wanted["logprobs"]["token_logprobs"])


@pytest.mark.skipif("PRORL_VLLM_URL" in os.environ, reason="that server has no such generation config")
@pytest.mark.parametrize("left_out", sorted(NEUTRAL))
async def test_each_parameter_that_is_left_out_is_the_models_own(
    clients: InferenceClients, vllm: Probed, left_out: str
) -> None:
    """The control: were one of them not sent, the test above would see other ids or log-probabilities."""
    some = {name: value for name, value in NEUTRAL.items() if name != left_out}
    body = {
        "model": vllm.info.model,
        "prompt": PROMPT,
        "max_tokens": 48,
        "logprobs": 1,
        "seed": 3,
        "return_token_ids": True,
    }
    found = []
    for sampling in (NEUTRAL, some):
        raw = await clients.transport.post(vllm.info.address, "/v1/completions", msgspec.json.encode(body | sampling))
        [choice] = msgspec.json.decode(raw.body)["choices"]
        found.append((choice["token_ids"], choice["logprobs"]["token_logprobs"]))
    assert found[0] != found[1]
