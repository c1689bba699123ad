"""Health: every backend is asked whether it lives and which weights it serves, and those that are done with leave."""

import asyncio
from collections.abc import Mapping
from typing import Final

from prorl_mq import chance
from prorl_mq.duties.backend_control import BackendControl, ControlFailed
from prorl_mq.store import pools as backends
from prorl_mq.store.pools import SharedState
from prorl_mq.store.store import Store

EVERY_S: Final = 2.0
AT_ONCE: Final = 16


class BackendHealth:
    """The probing loop. What it finds is in Redis, for all workers."""

    def __init__(self, store: Store, control: BackendControl, *, every_s: float = EVERY_S) -> None:
        self.store = store
        self.every_s = every_s
        self._control = control
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def turn(self) -> float:
        """Looks at every backend of every pool once, spread over a part of the time between two turns."""
        async with asyncio.TaskGroup() as group:
            for pool in await backends.names(self.store):
                view = await backends.view(self.store, pool)
                await self._sweep(pool, view.backends)
                for address, seen in view.backends.items():
                    group.create_task(self._look(pool, address, seen))
        return self.every_s

    async def _sweep(self, pool: str, known: Mapping[str, SharedState]) -> None:
        """Backends that no job holds any more: drained ones leave, those that have left are forgotten."""
        for address in await backends.idle(self.store, pool):
            if address not in known or known[address].draining:
                await self.store.leave(pool, address, reason="drained", drain=True, sweep=True)

    async def _look(self, pool: str, address: str, seen: SharedState) -> None:
        await asyncio.sleep(self.every_s / 4 * chance.fraction())  # so that probes do not fall together
        async with self._slots:
            alive = await self._control.alive(address)
            transition = backends.probe_answered if alive else backends.probe_missed
            facts = await self._facts(address, seen) if alive else {}
            await backends.observe(self.store, pool, address, seen.breaker, transition, facts)

    async def _facts(self, address: str, seen: SharedState) -> dict[str, str]:
        """Its version, if that is news."""
        try:
            told = await self._control.version(address)
        except ControlFailed:
            return {}
        return {} if told == seen.version else {"version": told or ""}
