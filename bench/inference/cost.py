"""What a call costs the process of a RUN worker: all of its CPU, transport and looks at the pool included.

Fake backends answer after as long as a real one takes; nothing is subtracted, and nothing else runs in this process. A
prompt grows as that of a rollout, by what was sampled and as many tokens of results.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import uvloop

from bench.inference.fleet import Fleet
from bench.inference.throughput import Ours
from prorl_mq.process.collector import calm
from prorl_mq.schema.items import Claim, Held
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.server.tracking import tracked
from prorl_mq.store.store import Store
from tests.support.queue import spec
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.request import GrowingIds
from workers.inference.run_clock import RunClock
from workers.stages.backends import Pools
from workers.stages.work import Work

TOKENS: Final = 32
RESULT_TOKENS: Final = 32  # that a turn's calls add
TOKEN_MS: Final = 10.0  # 0.32 s an answer
PROMPTS: Final = (100, 8_000, 32_000)
CALLS: Final = {1: 12, 32: 256, 256: 1024}  # by concurrency
WARM: Final = 2
RUN_S: Final = 3_600.0


async def _calls(policies: Sequence[StickyPolicy], prompts: Sequence[GrowingIds], each: int) -> None:
    async def turns(policy: StickyPolicy, prompt: GrowingIds) -> None:
        for seed in range(each):
            completion = await policy.generate(prompt, max_tokens=TOKENS, temperature=1.0, seed=seed)
            prompt.extend([*completion.ids, *range(RESULT_TOKENS)])

    await asyncio.gather(*map(turns, policies, prompts))


async def _rounds(url: str, rounds: int, calls: Mapping[int, int]) -> list[dict[str, Any]]:
    redis, rows = RedisSettings(url=url, namespace="cost"), list[dict[str, Any]]()
    async with AsyncExitStack() as stack:
        fleet = stack.enter_context(Fleet(2, token_ms=TOKEN_MS))
        clients = await stack.enter_async_context(InferenceClients())
        ours = Ours(redis, clients, fleet.addresses[0])
        stack.push_async_callback(ours.aclose)
        await ours.prepare()
        wired = connect(redis, wired=True)  # as a worker's
        stack.push_async_callback(wired.aclose)
        following = tracked(redis)
        stack.push_async_callback(following.aclose)
        pools = Pools(Store(wired, ours.keys, name=ours.worker), clients, tracked=following)
        looking = asyncio.create_task(pools.calls.run())
        stack.callback(looking.cancel)

        def policy(held: Held) -> StickyPolicy:
            return pools.policy(Work(held=held, claim=Claim("claimed", held.token), spec=spec()), RunClock(RUN_S))

        calm()
        for number in range(rounds):
            for concurrency, count in calls.items():
                held = await ours.held(concurrency)
                policies = [policy(each) for each in held]
                for size in PROMPTS:
                    each = count // concurrency
                    first = max(min(PROMPTS), size - (WARM + each) * (TOKENS + RESULT_TOKENS))
                    prompts = [GrowingIds(range(20, 20 + first)) for _ in policies]
                    await _calls(policies, prompts, WARM)
                    cpu_s = time.process_time()
                    await _calls(policies, prompts, each)
                    cpu_ms = 1e3 * (time.process_time() - cpu_s) / (each * concurrency)
                    rows.append({"case": f"{concurrency} at once, {size} ids", "round": number, "cpu_ms": cpu_ms})
                await ours.give_back(held)
    return rows


def cost(url: str, *, rounds: int, calls: Mapping[int, int] = CALLS) -> list[dict[str, Any]]:
    """A row for each concurrency, prompt and round: CPU of the process in milliseconds a call."""
    return uvloop.run(_rounds(url, rounds, calls))  # workers' loop
