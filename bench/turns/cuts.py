"""Tokens that are sampled again where backends are lost, with generation that continues and without it.

    python -m bench.turns.cuts

Two backends at 4 ms a token, one of which is stopped every 0.4 to 0.9 s; eight rollouts of two turns of 120 tokens.
"""

import asyncio
import random
import time
from typing import Final

from prorl_mq.testing.fake_backend import FakeBackend
from prorl_mq.testing.sampling import autoregressive
from workers.inference.arrived import Arrived
from workers.inference.assignment import Endpoint, FixedAssigner, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy

TOKEN_MS: Final = 4
TOKENS: Final = 120


async def again(seed: int, *, continues: bool) -> float:
    """Tokens sampled again, as a share of those that the rollouts have."""
    rng, lost, had = random.Random(seed), 0, 0

    async def kill(backends: tuple[FakeBackend, ...]) -> None:
        nonlocal lost
        while True:
            await asyncio.sleep(rng.uniform(0.4, 0.9))
            backend = next((each for each in backends if each.running), backends[0])
            running = [each for each in backend.requests if each.state == "running"]
            spent = [int((time.perf_counter() - each.started) * 1000 / TOKEN_MS) for each in running]
            lost += 0 if continues else sum(min(TOKENS, count) for count in spent)
            await backend.stop()
            await backend.start()

    async def rollout(number: int, policy: StickyPolicy) -> None:
        nonlocal had
        for turn in range(2):
            arrived = Arrived() if continues else None
            prompt = [number, turn, 5]
            completion = await policy.generate(prompt, max_tokens=TOKENS, temperature=0.0, arrived=arrived)
            had += len(completion.ids)

    reply = autoregressive()
    async with (
        FakeBackend(reply=reply, token_ms=TOKEN_MS) as one,
        FakeBackend(reply=reply, token_ms=TOKEN_MS) as other,
        InferenceClients() as clients,
    ):
        protocol = WireProtocol.VLLM_GENERATE
        assigner = FixedAssigner(*(Endpoint(address=each.address, protocol=protocol) for each in (one, other)))
        killing = asyncio.create_task(kill((one, other)))
        policies = [
            StickyPolicy(job_id=f"j{number}", token="1", assigner=assigner, clients=clients, max_tries=100)
            for number in range(8)
        ]
        await asyncio.gather(*(rollout(number, policy) for number, policy in enumerate(policies)))
        killing.cancel()
    return ((one.flow.sent + other.flow.sent - had) if continues else lost) / had


async def main() -> None:
    for continues in (True, False):
        shares = sorted([await again(seed, continues=continues) for seed in range(5)])
        median = f"median {shares[2]:.1%} ({shares[0]:.1%} to {shares[-1]:.1%})"
        print(f"{'continues' if continues else 'starts again'}: sampled again {median}")


if __name__ == "__main__":
    asyncio.run(main())
