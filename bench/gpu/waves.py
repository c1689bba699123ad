"""Rollouts as a trainer makes them without a service: one process, INIT of all, then RUN of all, then EVAL of all.

The agent loop, the sandboxes and the calls are the same code as in the service.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.handler import Work, messages, score, tools
from bench.gpu.service import SAMPLING
from bench.inference.rules import Chosen
from sandbox.isolators.kinds import make_provider
from sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec
from workers.agent.loading import policy_renderer
from workers.agent.loop import run_agent
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy
from workers.inference.run_clock import RunClock

RUN_S = 600.0


async def waves(works: Sequence[Work], at_once: int, address: str, directory: Path, kind: str) -> float:
    """Seconds for all of them, `at_once` a wave."""
    directory.chmod(0o755)  # noqa: ASYNC240 - nothing else runs yet
    provider = make_provider(kind, node="waves", state_dir=directory / "state", tools_dir=None, python_dir=None)
    try:
        async with InferenceClients() as clients:
            began = time.perf_counter()
            for first in range(0, len(works), at_once):
                wave = works[first : first + at_once]
                boxes = await asyncio.gather(*(_init(work, provider) for work in wave))
                answers = await asyncio.gather(
                    *(_run(work, box, clients, address) for work, box in zip(wave, boxes, strict=True))
                )
                await asyncio.gather(*(_eval(work, answer) for work, answer in zip(wave, answers, strict=True)))
            return time.perf_counter() - began
    finally:
        await provider.aclose()


async def _init(work: Work, provider: SandboxProvider) -> Sandbox:
    box = await provider.create(SandboxSpec(owner=f"wave-{work.number}"))
    await asyncio.sleep(work.init_s)
    return box


async def _run(work: Work, box: Sandbox, clients: InferenceClients, address: str) -> str:
    policy = StickyPolicy(
        job_id=f"wave-{work.number}", token="1", assigner=Chosen(lambda _: address), clients=clients
    )  # fmt: skip
    result = await run_agent(
        policy=policy,
        renderer=await policy_renderer(),
        messages=messages(work),
        tools=tools(),
        sandbox=box,
        sampling=SAMPLING,
        sample=f"t{work.number}:0",
        deadline=RunClock(RUN_S),
    )
    await box.close()
    return result.answer


async def _eval(work: Work, answer: str) -> None:
    await asyncio.sleep(work.eval_s)
    if score(answer) != 1.0:
        raise RuntimeError(f"task {work.number} ended with {answer[-80:]!r}")
