"""Turns of fetches in one process: runs that wait for images take turns, however many each one names."""

from typing import Final

from prorl_mq.clock import monotonic
from prorl_mq.schema.ids import RunRef, tenant_of

AT_ONCE: Final = 4
WAITING_S: Final = 5.0  # after it has last asked; its jobs come back before


class FetchTurns:
    """A place that is free goes to the run that waits and has the least: of its tenant first, then its own; among
    equals to the one whose last turn is the longest ago.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, RunRef] = {}  # by the image's key
        self._asked: dict[RunRef, float] = {}
        self._turns: dict[str, int] = {}  # of tenants and runs: the number of their last turn
        self._count = 0

    def take(self, key: str, run: RunRef) -> bool:
        """True if the image may be fetched now, or is already; until `done`, it has a place."""
        if key in self._under_way:
            return True
        now = monotonic()
        self._asked = {each: when for each, when in self._asked.items() if now - when < WAITING_S}
        self._asked[run] = now
        if len(self._under_way) >= AT_ONCE or min(self._asked, key=self._share) != run:
            return False
        self._count += 1
        self._turns |= {run: self._count, tenant_of(run): self._count}
        self._under_way[key] = run
        del self._asked[run]
        return True

    def done(self, key: str) -> None:
        """Its place is free."""
        self._under_way.pop(key, None)
        runs = [*self._under_way.values(), *self._asked]
        there = {*map(str, runs), *map(tenant_of, runs)}
        self._turns = {each: number for each, number in self._turns.items() if each in there}

    def _share(self, run: RunRef) -> tuple[int, int, int, int]:
        tenant, running = tenant_of(run), list(self._under_way.values())
        of_tenant = sum(tenant_of(each) == tenant for each in running)
        return of_tenant, running.count(run), self._turns.get(tenant, 0), self._turns.get(run, 0)
