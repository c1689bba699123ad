"""The simulation against the real queue: the same groups, accepted in the same order at the same virtual moments."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from bench.dapo.fleet import Fleet
from bench.dapo.modes import MODES, play
from bench.dapo.real_queue import RealQueue
from bench.dapo.simulation import Simulation
from bench.dapo.workload import Workload
from prorl_mq.schema.dapo import Dapo
from prorl_mq.schema.messages import Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, ask, connect

SLOTS = {Stage.INIT: 8, Stage.RUN: 32, Stage.EVAL: 8}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One run in one mode, with few slots, so that jobs also wait."""

    mode: str
    seed: int
    prompts: int = 30
    target: int = 5
    sigma: float = 1.0
    oversample: float = 1.5

    def work(self) -> Workload:
        return Workload(self.seed, sigma=self.sigma, n=4)

    def dapo(self) -> Dapo:
        return MODES[self.mode].dapo(self.target, self.oversample)

    @property
    def batches(self) -> int:
        return self.prompts // self.target


class Seen(NamedTuple):
    """What a run did: who was accepted in each batch, when each batch was full, and what each group cost."""

    accepted: list[list[int]]
    full: list[float]
    spent: dict[int, float]


async def simulated(case: Case) -> Seen:
    work = case.work()
    simulation = Simulation(work, range(case.prompts))
    fleet = Fleet(simulation, work, SLOTS)
    full = await play(fleet, simulation, case.dapo(), case.batches)
    return Seen(simulation.accepted, full, dict(fleet.spent))


async def real(case: Case, settings: RedisSettings) -> Seen:
    """On a server that is emptied before."""
    work = case.work()
    async with _queue(settings, work) as queue:
        await queue.prepare(range(case.prompts))
        fleet = Fleet(queue, work, SLOTS)
        full = await play(fleet, queue, case.dapo(), case.batches)
        return Seen(await queue.accepted(), full, dict(fleet.spent))


@asynccontextmanager
async def _queue(settings: RedisSettings, work: Workload) -> AsyncIterator[RealQueue]:
    redis = connect(settings)
    try:
        await ask(redis, "FLUSHALL")
        yield RealQueue(redis, Keys(settings.namespace), work)
    finally:
        await redis.aclose()
