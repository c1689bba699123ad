"""The prefix cache of a real vLLM, with turns that stay on a backend and turns that do not."""

import pytest

from tests.vllm.watching import metric
from workers.inference.assignment import Endpoint, FixedAssigner
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.probe import Probed

pytestmark = pytest.mark.anyio
TURNS, BACKENDS = 4, 4
HITS = "vllm:prefix_cache_hits_total"


def backends(vllm: Probed, case: str) -> list[Endpoint]:
    """Four salts keep four prefix caches in one engine: to a prompt they are four backends."""
    info = vllm.info
    return [
        Endpoint(address=info.address, protocol=info.protocol, model=info.model, cache_salt=f"{case}-{number}")
        for number in range(BACKENDS)
    ]


async def cached_by_turn(clients: InferenceClients, assigner: FixedAssigner, *, sticky: bool) -> list[int]:
    """Cached tokens of each turn of one trajectory; without stickiness each turn asks for a backend again."""
    prompt = [number % 900 + 20 for number in range(160)]
    policy = None
    found = []
    for turn in range(TURNS):
        if policy is None or not sticky:
            policy = StickyPolicy(job_id=f"cache-{turn}", token="1", assigner=assigner, clients=clients)
        answer = await policy.generate(prompt, max_tokens=48, temperature=1.0, seed=turn)
        assert answer.cached_tokens is not None
        found.append(answer.cached_tokens)
        prompt = [*prompt, *answer.ids, 30 + turn, *range(40, 80)]
    return found


async def test_hits_rise_from_turn_to_turn_with_stickiness_and_are_gone_without(
    clients: InferenceClients, vllm: Probed
) -> None:
    """vLLM's own counter says the same as its answers."""
    address = vllm.info.address
    before = await metric(clients, address, HITS)
    sticky = await cached_by_turn(clients, FixedAssigner(*backends(vllm, "sticky")), sticky=True)
    between = await metric(clients, address, HITS)
    wandering = await cached_by_turn(clients, FixedAssigner(*backends(vllm, "wandering")), sticky=False)
    after = await metric(clients, address, HITS)
    assert sticky[0] == 0
    assert sticky == sorted(set(sticky)), "every turn finds more than the one before"
    assert sticky[1] >= 160
    assert wandering == [0] * TURNS
    assert (between - before, after - between) == (sum(sticky), 0)
