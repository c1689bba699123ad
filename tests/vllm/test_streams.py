"""Turns whose tokens are streamed: what a real vLLM streams is what it answers, and a cut turn is the uncut one."""

import os

import pytest
from msgspec.structs import replace

from tests.support.network import network
from workers.inference.arrived import Arrived
from workers.inference.assignment import FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.probe import Probed
from workers.inference.protocol import Completion

pytestmark = pytest.mark.anyio
PROMPT = list(range(40, 80))
TOKENS = 400


@pytest.mark.parametrize("protocol", [WireProtocol.VLLM_GENERATE, WireProtocol.COMPLETIONS])
async def test_a_cut_turn_is_the_uncut_one(clients: InferenceClients, vllm: Probed, protocol: WireProtocol) -> None:
    """At temperature 0, where both are one sequence. Log-probabilities of the rest come of another prefill."""
    async with network(vllm.info.address) as between:
        policy = StickyPolicy(
            job_id=f"s-{protocol}-{os.getpid()}",
            token="1",
            assigner=FixedAssigner(replace(vllm.info, protocol=protocol, address=between.address)),
            clients=clients,
        )

        async def turn(arrived: Arrived | None = None) -> Completion:
            return await policy.generate(PROMPT, max_tokens=TOKENS, temperature=0.0, arrived=arrived)

        whole, reasons = await turn(), list[str]()
        streaming, before = Arrived(), between.answered
        streaming.unable = reasons.append
        streamed = await turn(streaming)
        assert (streamed.ids, streamed.finish_reason) == (whole.ids, whole.finish_reason)
        assert streamed.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
        assert reasons == []
        between.ends_after = (between.answered - before) // 2
        answer = await turn(Arrived())
    assert policy.resumes == 1
    assert (answer.ids, answer.finish_reason) == (whole.ids, whole.finish_reason)
    assert answer.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert len(answer.spans) == 2
    assert answer.spans[0].end >= len(whole.ids) // 4
