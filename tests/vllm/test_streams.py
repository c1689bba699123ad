"""Turns whose tokens are streamed: what a real vLLM streams is what it answers, and a cut turn is the uncut one."""

import asyncio
import os
from typing import Any

import pytest
from msgspec.structs import replace

from workers.inference.arrived import Arrived, CallTokens
from workers.inference.assignment import FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.probe import Probed
from workers.inference.protocol import Completion

pytestmark = pytest.mark.anyio
PROMPT = list(range(40, 80))
TOKENS = 400


@pytest.mark.parametrize("protocol", [WireProtocol.VLLM_GENERATE, WireProtocol.COMPLETIONS])
async def test_a_cut_turn_is_the_uncut_one(
    clients: InferenceClients, vllm: Probed, protocol: WireProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At temperature 0, where both are one sequence. Log-probabilities of the rest come of another prefill."""
    endpoint = replace(vllm.info, protocol=protocol)
    policy = StickyPolicy(
        job_id=f"s-{protocol}-{os.getpid()}", token="1", assigner=FixedAssigner(endpoint), clients=clients
    )

    def turn(**about: Any) -> "asyncio.Task[Completion]":
        given = {"max_tokens": TOKENS, "temperature": 0.0, **about}
        return asyncio.ensure_future(policy.generate(PROMPT, **given))

    whole, reasons = await turn(), list[str]()
    streaming = Arrived()
    streaming.unable = reasons.append
    streamed = await turn(arrived=streaming)
    assert (streamed.ids, streamed.finish_reason) == (whole.ids, whole.finish_reason)
    assert streamed.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert reasons == []
    add = CallTokens.add

    def add_and_cut(call: CallTokens, *about: Any) -> None:
        """The cut is where a quarter has arrived, however busy this process is."""
        add(call, *about)
        if len(call.ids) >= len(whole.ids) // 4:
            monkeypatch.undo()
            clients.transport.give_up(endpoint.address, "the test cuts it")

    for _ in range(10):
        monkeypatch.setattr(CallTokens, "add", add_and_cut)
        answer = await turn(arrived=Arrived())
        if policy.resumes:  # else all of it arrived in one piece: this process was too busy to read
            break
    assert policy.resumes == 1
    assert (answer.ids, answer.finish_reason) == (whole.ids, whole.finish_reason)
    assert answer.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert len(answer.spans) == 2
    assert answer.spans[0].end >= len(whole.ids) // 4
