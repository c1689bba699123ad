"""LoRA adapters of a real vLLM: loaded, named, unloaded, and their tokens scored by the weights that they stand for."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from prorl_mq.duties.backend_control import BackendControl
from prorl_mq.schema.policy import adapter_name
from tests.unit.workers.inference.conftest import request
from tests.vllm.scoring import TOLERANCE, Scorer
from workers.inference.assignment import WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.probe import Probed
from workers.inference.protocol import InferenceError

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif("PRORL_VLLM_URL" in os.environ, reason="that server may have no adapters"),
]
PROMPT = list(range(40, 60))


@pytest.fixture
async def control() -> AsyncIterator[BackendControl]:
    made = BackendControl()
    yield made
    await made.aclose()


@pytest.mark.parametrize("protocol", [WireProtocol.VLLM_GENERATE, WireProtocol.COMPLETIONS])
async def test_tokens_of_an_adapters_version_score_under_its_weights(
    clients: InferenceClients,
    control: BackendControl,
    vllm: Probed,
    scorer: Scorer,
    model: Path,
    tmp_path: Path,
    protocol: WireProtocol,
) -> None:
    address, adapter = vllm.info.address, f"skill-{protocol.value}"
    for version in (1, 2):
        scorer.adapt(model, tmp_path / f"adapter-{version}", tmp_path / f"merged-{version}", seed=version)
        await control.load_adapter(address, adapter_name(adapter, str(version)), str(tmp_path / f"adapter-{version}"))
    assert await control.adapters(address, adapter) == [1, 2]
    for version in (2, 1):
        name = adapter_name(adapter, str(version))
        backend = msgspec.structs.replace(vllm.info, protocol=protocol, adapter=name, adapter_version=str(version))
        answer = await clients.generate(backend, request(prompt_ids=PROMPT, max_tokens=24, seed=version))
        assert answer.version == (str(version), str(version))
        ids = [*PROMPT, *answer.ids]
        scored = {
            weights: scorer.score(ids, len(PROMPT), [(len(ids), weights)], 1.0)
            for weights in (tmp_path / f"merged-{version}", model)
        }
        assert scored[tmp_path / f"merged-{version}"] == pytest.approx(list(answer.logprobs), abs=TOLERANCE)
        assert scored[model] != pytest.approx(list(answer.logprobs), abs=0.05), (
            "the base model's are others: the control"
        )
    await control.unload_adapter(address, adapter_name(adapter, "1"))
    assert await control.adapters(address, adapter) == [2]
    with pytest.raises(InferenceError, match="404") as gone:
        await clients.generate(backend, request(prompt_ids=PROMPT))
    assert gone.value.retryable, "another backend may serve it"
