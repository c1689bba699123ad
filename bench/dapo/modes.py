"""The ways of filling batches that are compared, and how a run of batches is played in each."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from bench.dapo.fleet import Fleet, System
from prorl_mq.schema.dapo import Dapo, Reservoir, Surplus


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """`restart`: the next batch begins unfinished prompts from scratch."""

    surplus: Surplus
    restart: bool = False

    def dapo(self, target: int, oversample: float) -> Dapo:
        return Dapo(target_groups=target, oversample=oversample, surplus=self.surplus, reservoir=Reservoir.RUN)


MODES: Mapping[str, Mode] = {
    "carry": Mode(surplus=Surplus.CARRY),
    "ordered": Mode(surplus=Surplus.ORDERED),
    "cancel": Mode(surplus=Surplus.CANCEL),
    "cancel and restart": Mode(surplus=Surplus.CANCEL, restart=True),  # ProRL's scheme
}


class Sampling(System, Protocol):
    """A run of DAPO batches: the real queue, or the simulation of it."""

    @property
    def is_open(self) -> bool:
        """Whether the last batch still accepts groups."""
        ...

    async def open(self, dapo: Dapo) -> None: ...


async def play(fleet: Fleet, sampling: Sampling, dapo: Dapo, batches: int) -> list[float]:
    """Batches one after the other, without a pause; when each was full. The last may be short of prompts."""
    full = []
    for _ in range(batches):
        await sampling.open(dapo)
        if not await fleet.go_on(lambda: not sampling.is_open):
            break
        full.append(fleet.now)
    return full
