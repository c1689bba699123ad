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
ENDLESS = 100_000  # a target that no batch reaches


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One run in one mode, with few slots, so that jobs also wait."""

    mode: str
    seed: int
    prompts: int = 30
    target: int = 5
    sigma: float = 1.0
    oversample: float = 1.5

    def work(self) -> Workload:
        """`min_k` needs more samples than it counts."""
        return Workload(self.seed, sigma=self.sigma, n=8 if MODES[self.mode].accept else 4)


class Seen(NamedTuple):
    """What a run did: who was accepted in each batch, when each batch was full, and what each group cost."""

    accepted: list[list[int]]
    full: list[float]
    spent: dict[int, float]


async def simulated(case: Case) -> Seen:
    shared, own = _prompts(case)
    work = case.work()
    simulation = Simulation(work, shared, accept=MODES[case.mode].accept)
    fleet = Fleet(simulation, work, SLOTS)
    full = await play(fleet, simulation, _dapo(case), _batches(case), own)
    return Seen(simulation.accepted, full, dict(fleet.spent))


async def real(case: Case, settings: RedisSettings) -> Seen:
    """On a server that is emptied before."""
    shared, own = _prompts(case)
    work = case.work()
    async with _queue(settings, case, work) as queue:
        await queue.prepare(shared)
        fleet = Fleet(queue, work, SLOTS)
        full = await play(fleet, queue, _dapo(case), _batches(case), own)
        exhausted = MODES[case.mode].early_drop is not None  # then the only batch has closed without being full
        return Seen(await queue.accepted(), [] if exhausted else full, dict(fleet.spent))


@asynccontextmanager
async def _queue(settings: RedisSettings, case: Case, work: Workload) -> AsyncIterator[RealQueue]:
    redis = connect(settings)
    try:
        await ask(redis, "FLUSHALL")
        yield RealQueue(redis, Keys(settings.namespace), work, accept=MODES[case.mode].accept)
    finally:
        await redis.aclose()


def _prompts(case: Case) -> tuple[range, range]:
    """The run's, and the batch's own: early drop is for these alone."""
    everything = range(case.prompts)
    return (range(0), everything) if MODES[case.mode].early_drop else (everything, range(0))


def _dapo(case: Case) -> Dapo:
    mode = MODES[case.mode]
    return mode.dapo(ENDLESS if mode.early_drop else case.target, case.oversample)


def _batches(case: Case) -> int:
    return 1 if MODES[case.mode].early_drop else case.prompts // case.target
