"""Calls to a real vLLM: probing, both protocols, stop ids, prefix cache, cancelling, aborting."""

import asyncio
import os
import time

import msgspec
import pytest

from tests.unit.workers.inference.conftest import cancelled, request
from tests.vllm.watching import until_running
from workers.inference.assignment import Endpoint, FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.logprobs import LogprobMode
from workers.inference.policy import StickyPolicy
from workers.inference.probe import Probed
from workers.inference.protocol import BackendRefused, ContextFull
from workers.inference.protocols.abort import ROUTES, Aborter

pytestmark = pytest.mark.anyio


async def test_probing_finds_the_token_route_and_processed_logprobs(clients: InferenceClients, vllm: Probed) -> None:
    assert vllm.info.protocol is WireProtocol.VLLM_GENERATE
    assert vllm.info.logprobs is LogprobMode.PROCESSED
    assert vllm.version is not None
    assert vllm.info.context_tokens is not None
    assert vllm.info.model in vllm.models


async def test_both_protocols_give_the_same_ids_and_logprobs_for_a_seed(
    clients: InferenceClients, vllm: Probed
) -> None:
    fallback = Endpoint(address=vllm.info.address, protocol=WireProtocol.COMPLETIONS, model=vllm.info.model)
    wanted = request(prompt_ids=list(range(20, 60)), max_tokens=24, temperature=0.8, top_p=0.95, top_k=50)
    first = await clients.generate(vllm.info, wanted)
    second = await clients.generate(fallback, wanted)
    assert (first.ids, first.logprobs) == (second.ids, second.logprobs)
    assert (first.prompt_tokens, second.prompt_tokens) == (40, 40)
    assert len(first.ids) == len(first.logprobs) <= 24


async def test_two_turns_of_delta_prompts_hit_the_prefix_cache(clients: InferenceClients, vllm: Probed) -> None:
    """The next prompt is prompt + completion + delta; were it not exact, the cache would not know it."""
    policy = StickyPolicy(job_id=f"turns-{os.getpid()}", token="1", assigner=FixedAssigner(vllm.info), clients=clients)
    salted = [time.time_ns() % 997 for _ in range(8)]  # a prompt that no earlier test has left in the cache
    prompt = [*salted, *(number % 900 + 20 for number in range(120))]
    cached = []
    for turn in range(3):
        answer = await policy.generate(prompt, max_tokens=48, temperature=1.0, seed=turn)
        assert answer.prompt_tokens == len(prompt)
        assert answer.version is not None
        assert answer.version[0] == answer.version[1]
        cached.append(answer.cached_tokens)
        prompt = [*prompt, *answer.ids, 30 + turn, 31, 32]
    assert cached[0] == 0
    assert cached[1] is not None
    assert cached[2] is not None
    assert 0 < cached[1] < cached[2]


async def test_a_stop_id_ends_the_turn_and_stays_in_the_ids(clients: InferenceClients, vllm: Probed) -> None:
    free = await clients.generate(vllm.info, request(max_tokens=16, seed=3))
    stop = free.ids[5]
    stopped = await clients.generate(vllm.info, request(max_tokens=16, seed=3, stop_token_ids=[stop]))
    place = list(free.ids).index(stop)
    assert list(stopped.ids) == list(free.ids[: place + 1])
    assert (stopped.finish_reason, stopped.stop_token) == ("stop", stop)


async def test_a_wrong_request_is_refused(clients: InferenceClients, vllm: Probed) -> None:
    with pytest.raises(BackendRefused, match="400"):
        await clients.generate(vllm.info, request(prompt_ids=[10_000_000]))


@pytest.mark.parametrize("protocol", [WireProtocol.VLLM_GENERATE, WireProtocol.COMPLETIONS])
async def test_a_prompt_that_fills_the_context_is_told_apart(
    clients: InferenceClients, vllm: Probed, protocol: WireProtocol
) -> None:
    info = msgspec.structs.replace(vllm.info, protocol=protocol)
    with pytest.raises(ContextFull, match="fills its context"):
        await clients.generate(info, request(prompt_ids=[5] * 10_000))


@pytest.mark.parametrize("protocol", [WireProtocol.VLLM_GENERATE, WireProtocol.COMPLETIONS])
async def test_cancelling_stops_the_request_in_the_engine(
    clients: InferenceClients, vllm: Probed, protocol: WireProtocol
) -> None:
    backend = Endpoint(address=vllm.info.address, protocol=protocol, model=vllm.info.model)
    for seed in range(20):  # one that does not end by itself before a busy machine has seen it
        name = f"cancel-{protocol.value}-{os.getpid()}-{seed}"
        long = request(request_id=name, max_tokens=3500, stop_token_ids=[], seed=seed)
        task = asyncio.create_task(clients.generate(backend, long))
        watching = asyncio.create_task(until_running(clients, backend.address, 1))
        await asyncio.wait({task, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            break
        watching.cancel()
    assert await cancelled(task)
    assert await until_running(clients, backend.address, 0) < 2


async def test_an_abort_from_outside_keeps_the_partial_ids_and_the_turn_goes_on(
    clients: InferenceClients, vllm: Probed
) -> None:
    """As in a policy update of mode `abort`. The tiny model seldom samples its end token: retried with other seeds."""
    policy = StickyPolicy(job_id=f"abort-{os.getpid()}", token="1", assigner=FixedAssigner(vllm.info), clients=clients)
    address = vllm.info.address
    for seed in range(20):
        turn = asyncio.create_task(policy.generate([20, 21, 22], max_tokens=1500, temperature=1.0, seed=seed))
        running = asyncio.create_task(until_running(clients, address, 1))
        await asyncio.wait({turn, running}, return_when=asyncio.FIRST_COMPLETED)
        if turn.done():  # it sampled its end before anybody saw it run
            running.cancel()
        await asyncio.gather(running, return_exceptions=turn.done())
        await clients.transport.post(address, "/abort_requests", b"{}")
        answer = await turn
        assert len(answer.ids) == len(answer.logprobs) <= 1500
        assert answer.finish_reason in {"stop", "length"}
        if policy.resumes:
            break
    assert policy.resumes >= 1


async def test_an_older_route_aborts_one_request_by_its_id_and_no_other(
    clients: InferenceClients, vllm: Probed
) -> None:
    """`/abort_requests` in dev mode, which is all that vLLM up to 0.31 has."""
    aborter = Aborter(clients.transport)
    aborter._routes[vllm.info.address] = ROUTES[WireProtocol.VLLM_GENERATE][1:]
    ids = [f"old-{number}-{os.getpid()}" for number in range(2)]
    cut, kept = (
        asyncio.create_task(clients.generate(vllm.info, request(request_id=each, max_tokens=3000, stop_token_ids=[])))
        for each in ids
    )
    await until_running(clients, vllm.info.address, 2)
    await aborter.abort(vllm.info, ids[0])
    assert (await cut).finish_reason == "abort"
    assert not kept.done()
    assert await cancelled(kept)
