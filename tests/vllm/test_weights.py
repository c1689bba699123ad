"""Weights that change in the middle of a request, by vLLM's own routes."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.vllm.control import swap
from tests.vllm.scoring import TOLERANCE, Scorer, worst
from tests.vllm.watching import until_sampled
from workers.inference.assignment import FixedAssigner
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.probe import Probed
from workers.inference.protocols.answers import require_ok

pytestmark = pytest.mark.anyio
PROMPT = list(range(40, 80))
TOKENS = 600


@pytest.fixture(autouse=True)
async def first_weights(clients: InferenceClients, vllm: Probed, model: Path) -> AsyncIterator[None]:
    """Every test begins and ends with them."""
    yield
    await swap(clients, vllm.info.address, model, "default", mode="abort")


async def test_a_request_goes_on_and_its_tokens_score_under_the_weights_that_sampled_them(
    clients: InferenceClients, vllm: Probed, scorer: Scorer, model: Path, other_weights: Path
) -> None:
    """Mode keep: the new weights continue from the keys and values that the old ones left."""
    address = vllm.info.address
    for number in range(20):  # until one was not over before the weights came
        body = {
            "request_id": f"swap-{number}-{os.getpid()}", "model": vllm.info.model, "token_ids": PROMPT,
            "sampling_params": {
                "max_tokens": TOKENS, "temperature": 1.0, "seed": 5, "logprobs": 0, "ignore_eos": True,
            },
        }  # fmt: skip
        sent = clients.transport.post(address, "/inference/v1/generate", msgspec.json.encode(body))
        call = asyncio.create_task(sent)
        await until_sampled(clients, address, 20)
        await swap(clients, address, other_weights, "next")
        answer = await call
        require_ok(address, "generate", answer)
        [choice] = msgspec.json.decode(answer.body)["choices"]
        if len(choice["weight_versions"]) > 1:
            break
        await swap(clients, address, model, "default")
    ids, told = choice["token_ids"], [each["logprob"] for each in choice["logprobs"]["content"]]
    before, after = choice["weight_versions"]
    place = before["end"]
    assert [before["version"], after["version"]] == ["default", "next"]
    assert 0 < place == after["start"] < after["end"] == TOKENS
    context = [*PROMPT, *ids]
    parts = [(len(PROMPT) + place - 1, model), (len(context), other_weights)]
    assert worst(told, scorer.score(context, len(PROMPT), parts, 1.0)) < TOLERANCE


async def test_an_aborted_turn_resumes_and_what_follows_scores_under_the_new_weights_alone(
    clients: InferenceClients, vllm: Probed, scorer: Scorer, model: Path, other_weights: Path
) -> None:
    """Mode abort: partial ids are kept, their keys and values are not."""
    address = vllm.info.address
    for seed in range(20):  # until one has not sampled its end before
        assigner = FixedAssigner(vllm.info)
        policy = StickyPolicy(job_id=f"w{seed}-{os.getpid()}", token="1", assigner=assigner, clients=clients)
        turn = asyncio.create_task(policy.generate(PROMPT, max_tokens=TOKENS, temperature=1.0, seed=seed))
        await until_sampled(clients, address, 20)
        await swap(clients, address, other_weights, "next", mode="abort")
        answer = await turn
        if policy.resumes:
            break
        await swap(clients, address, model, "default")
    assert policy.resumes == 1
    context = [*PROMPT, *answer.ids]
    old, new = answer.spans
    assert [old.version, new.version] == [("default", "default"), ("next", "next")]
    for span, weights in ((old, model), (new, other_weights)):
        end = len(PROMPT) + span.end
        scored = scorer.score(context[:end], len(PROMPT) + span.start, [(end, weights)], 1.0)
        assert worst(answer.logprobs[span.start : span.end], scored) < TOLERANCE
