"""One attempt's policy: sticky, moved on failure, stopped on cancel."""

import asyncio
from collections.abc import Set as AbstractSet

import msgspec
import pytest

from prorl_mq.testing.control import ABORT_ROUTES
from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.wire import FakeFault
from tests.unit.workers.inference.conftest import PROMPT, cancelled, info, policy_over
from workers.inference.assignment import Endpoint, FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.protocol import BackendRefused, InferenceError, NoBackend, Policy

pytestmark = pytest.mark.anyio


def check_implements(policy: Policy) -> Policy:
    return policy


async def test_all_turns_go_to_the_backend_of_the_first(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend
) -> None:
    policy = check_implements(policy_over(clients, backend, other))
    for _ in range(4):
        await policy.generate(PROMPT, max_tokens=4, temperature=1.0)
    assert (len(backend.requests), len(other.requests)) == (4, 0)


async def test_every_call_has_its_own_request_id(clients: InferenceClients, backend: FakeBackend) -> None:
    """vLLM accepts duplicates; an abort of one would hit the other."""
    first, second = policy_over(clients, backend), policy_over(clients, backend)
    second._token = "2"
    for policy in (first, second, first):
        backend.fail_next(FakeFault.BUSY)
        await policy.generate(PROMPT, max_tokens=4, temperature=1.0)
    ids = [request.call.request_id for request in backend.requests]
    assert len(set(ids)) == len(ids) == 6


@pytest.mark.parametrize(
    "fault", [FakeFault.ERROR, FakeFault.RESET, FakeFault.BUSY, FakeFault.WRONG_LENGTHS, FakeFault.GARBAGE]
)
async def test_a_failure_moves_the_attempt_with_the_same_prompt(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend, fault: FakeFault
) -> None:
    assigner = FixedAssigner(info(backend), info(other))
    policy = policy_over(clients, assigner=assigner)
    first = await policy.generate(PROMPT, max_tokens=4, temperature=1.0, seed=1)
    backend.fault = fault
    prompt = [*PROMPT, *first.ids, 77]
    second = await policy.generate(prompt, max_tokens=4, temperature=1.0, seed=2)
    await policy.generate([*prompt, *second.ids], max_tokens=4, temperature=1.0, seed=3)
    assert (first.backend, second.backend) == (backend.address, other.address)
    assert list(other.requests[0].call.prompt_ids) == prompt
    assert len(other.requests) == 2  # it stays there
    assert assigner.failures == {backend.address: 1}
    assert policy.moves == 1


async def test_a_turn_survives_the_death_of_its_backend(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend
) -> None:
    backend.latency_ms = 60_000
    policy = policy_over(clients, backend, other)
    task = asyncio.create_task(policy.generate(PROMPT, max_tokens=4, temperature=1.0, seed=1))
    await backend.wait_running(1)
    await backend.stop()
    answer = await task
    assert answer.backend == other.address


async def test_a_single_backend_that_fails_once_is_tried_again(clients: InferenceClients, backend: FakeBackend) -> None:
    backend.fail_next(FakeFault.ERROR, FakeFault.BUSY)
    answer = await policy_over(clients, backend).generate(PROMPT, max_tokens=4, temperature=1.0)
    assert (len(answer.ids), backend.states()) == (4, ["failed", "failed", "done"])


async def test_tries_are_bounded_and_the_last_error_tells_where(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend
) -> None:
    backend.fault = other.fault = FakeFault.ERROR
    policy = policy_over(clients, backend, other, max_tries=3)
    with pytest.raises(InferenceError, match="500") as caught:
        await policy.generate(PROMPT, max_tokens=4, temperature=1.0)
    assert len(backend.requests) + len(other.requests) == 3
    assert backend.address in caught.value.__notes__[0]
    assert other.address in caught.value.__notes__[0]


async def test_a_refused_request_is_not_sent_to_another_backend(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend
) -> None:
    policy = policy_over(clients, backend, other)
    with pytest.raises(BackendRefused):
        await policy.generate(list(range(40_000)), max_tokens=4, temperature=1.0)
    assert len(other.requests) == 0


async def test_an_empty_pool_is_said_before_anything_is_sent(clients: InferenceClients) -> None:
    with pytest.raises(NoBackend, match="job job"):
        await policy_over(clients, assigner=FixedAssigner()).generate(PROMPT, max_tokens=4, temperature=1.0)


async def test_an_assignment_is_asked_for_once_and_then_with_what_failed(
    clients: InferenceClients, backend: FakeBackend, other: FakeBackend
) -> None:
    asked: list[AbstractSet[str]] = []

    class Recording(FixedAssigner):
        async def assign(self, job_id: str, token: str, *, exclude: AbstractSet[str]) -> Endpoint:
            asked.append(exclude)
            return await super().assign(job_id, token, exclude=exclude)

    assigner = Recording(info(backend), info(other, WireProtocol.COMPLETIONS))
    policy = policy_over(clients, assigner=assigner)
    await policy.generate(PROMPT, max_tokens=4, temperature=1.0)
    backend.fail_next(FakeFault.ERROR)
    await policy.generate(PROMPT, max_tokens=4, temperature=1.0)
    assert asked == [frozenset(), frozenset({backend.address})]
    assert policy.backend == info(other, WireProtocol.COMPLETIONS)


async def test_cancelling_closes_the_connection_and_posts_the_abort(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    """Behind a proxy the closed connection does not reach the engine; the abort does, if its id has the prefix."""
    backend.fault = FakeFault.HANG
    task = asyncio.create_task(policy_over(clients, backend).generate(PROMPT, max_tokens=4, temperature=1.0))
    await backend.wait_running(1)
    assert await cancelled(task)
    assert backend.aborts == ["generate-tokens-" + backend.requests[0].call.request_id]
    await backend.wait_running(0)


@pytest.mark.parametrize("routes", [ABORT_ROUTES[1:], ()])
async def test_an_older_backend_is_aborted_by_its_own_route_and_asked_once_for_what_it_lacks(
    clients: InferenceClients, backend: FakeBackend, routes: tuple[str, ...]
) -> None:
    """vLLM up to 0.31. Its route aborts everything when it is sent no ids, so others' requests must stay."""
    backend.fault = FakeFault.HANG
    backend.abort_routes = set(routes)
    bystander = asyncio.create_task(policy_over(clients, backend).generate(PROMPT, max_tokens=4, temperature=1.0))
    await backend.wait_running(1)
    for _ in range(2):
        task = asyncio.create_task(policy_over(clients, backend).generate(PROMPT, max_tokens=4, temperature=1.0))
        await backend.wait_running(2)
        assert await cancelled(task)
        await backend.wait_running(1)
    ids = ["generate-tokens-" + each.call.request_id for each in backend.requests]
    assert backend.aborts == (ids[1:] if routes else [])
    assert backend.calls.count(ABORT_ROUTES[0]) == 1
    assert backend.calls.count(ABORT_ROUTES[1]) == (2 if routes else 1)
    assert backend.states()[0] == "running"
    assert await cancelled(bystander)


async def test_cancelling_is_bounded_when_the_backend_is_dead(backend: FakeBackend) -> None:
    backend.fault = FakeFault.HANG
    async with InferenceClients(abort_s=0.2) as clients:
        task = asyncio.create_task(policy_over(clients, backend).generate(PROMPT, max_tokens=4, temperature=1.0))
        await backend.wait_running(1)
        backend.server.handler = lambda _request: asyncio.Future()  # answers nothing any more
        async with asyncio.timeout(20):
            assert await cancelled(task)


async def test_a_turn_that_the_backend_aborts_goes_on_from_its_partial_ids(
    clients: InferenceClients, backend: FakeBackend
) -> None:
    """A policy update in mode `abort`: tokens sampled before it are kept, the rest comes from the new weights."""
    backend.latency_ms = 60_000
    policy = policy_over(clients, backend)
    task = asyncio.create_task(policy.generate(PROMPT, max_tokens=1000, temperature=1.0, seed=1))
    await backend.wait_running(1)
    backend.latency_ms = 0
    await backend.pause()
    backend.abort_all(share=0.3)
    await backend.wait_until(lambda now: now.states() == ["aborted", "running"])
    backend.set_version("step-2", share=0)
    backend.resume()
    answer = await task
    first, rest = backend.requests
    kept = len(rest.call.prompt_ids) - len(PROMPT)
    assert kept == 300
    assert rest.call.prompt_ids == [*PROMPT, *answer.ids[:kept]]
    assert rest.call.params.max_tokens == 1000 - kept
    assert rest.call.params.seed != first.call.params.seed
    assert (len(answer.ids), len(answer.logprobs), answer.finish_reason) == (1000, 1000, "length")
    assert answer.version == ("default", "step-2")
    assert [(each.start, each.end, each.version) for each in answer.spans] == [
        (0, kept, ("default", "default")),
        (kept, 1000, ("step-2", "step-2")),
    ]
    assert answer.prompt_tokens == len(PROMPT)
    assert policy.resumes == 1


async def test_a_backend_is_called_as_it_is_at_the_moment(clients: InferenceClients, backend: FakeBackend) -> None:
    class Salting(FixedAssigner):
        async def ready(self, backend: Endpoint) -> Endpoint:
            return msgspec.structs.replace(backend, cache_salt=next(versions))

    versions = iter(["v1", "v2"])
    policy = policy_over(clients, assigner=Salting(info(backend)))
    for _ in range(2):
        await policy.generate(PROMPT, max_tokens=4, temperature=1.0)
    assert [request.call.cache_salt for request in backend.requests] == ["v1", "v2"]
