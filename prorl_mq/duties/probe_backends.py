"""Health: every backend is asked whether it lives and which weights it serves, and those that are done with leave."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from prorl_mq import chance
from prorl_mq.duties.apart import Apart
from prorl_mq.duties.backend_control import BackendControl, ControlFailed
from prorl_mq.duties.tasks import Tasks
from prorl_mq.rules.reach import Reach
from prorl_mq.schema.ids import tenant_of
from prorl_mq.store import pools as backends
from prorl_mq.store.pools import SharedState
from prorl_mq.store.store import Store

EVERY_S: Final = 2.0
AT_ONCE: Final = 16  # of one tenant
PATIENCE_S: Final = 2.0  # how long one turn waits for its probes; a slower one continues beside the next turns


class BackendHealth:
    """The probing loop. What it finds is in Redis, for all workers.

    A backend that is slow, or whose probe fails in any way, delays no probe of another tenant's; nor do many pools.
    """

    def __init__(self, store: Store, control: BackendControl, *, every_s: float = EVERY_S) -> None:
        self.store = store
        self.every_s = every_s
        self._control = control
        self._apart = Apart(store, "health")
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        self._reading = Tasks[str]()  # by tenant
        self._busy = Tasks[tuple[str, str]]()  # by pool and address

    async def turn(self) -> float:
        """Looks at every backend of every pool once, spread over a part of the time between two turns."""
        self._reading.end()
        found: dict[str, list[str]] = {}
        for pool in await backends.names(self.store):
            found.setdefault(tenant_of(pool), []).append(pool)
        for tenant, pools in found.items():
            if tenant not in self._reading:
                self._reading.start(tenant, self._begin_all(pools))
        await self._reading.wait(within_s=PATIENCE_S)
        await self._busy.wait(within_s=PATIENCE_S)
        return self.every_s

    async def aclose(self) -> None:
        """Stops the probes that still run."""
        await self._reading.cancel()
        await self._busy.cancel()

    async def _begin_all(self, pools: Sequence[str]) -> None:
        for pool in pools:
            if not self._apart.left_out(pool):
                await self._apart.do(pool, partial(self._begin, pool))

    async def _begin(self, pool: str) -> None:
        known = (await backends.view(self.store, pool)).backends
        await self._sweep(pool, known)
        for address, seen in known.items():
            name = f"{pool} {address}"
            if (pool, address) not in self._busy and not self._apart.left_out(name):
                self._busy.start((pool, address), self._apart.do(name, partial(self._look, pool, address, seen)))

    async def _sweep(self, pool: str, known: Mapping[str, SharedState]) -> None:
        """Backends that no job holds any more: drained ones leave, those that have left are forgotten."""
        for address in await backends.idle(self.store, pool):
            if address not in known or known[address].draining:
                await self.store.leave(pool, address, reason="drained", drain=True, sweep=True)

    async def _look(self, pool: str, address: str, seen: SharedState) -> None:
        await asyncio.sleep(self.every_s / 4 * chance.fraction())  # so that probes do not fall together
        async with self._slots[tenant_of(pool)]:
            reach = seen.info.reach if seen.info else None
            alive = await self._control.alive(address, reach)
            transition = backends.probe_answered if alive else backends.probe_missed
            facts = await self._facts(address, reach, seen) if alive else {}
            await backends.observe(self.store, pool, address, seen.breaker, transition, facts)

    async def _facts(self, address: str, reach: Reach | None, seen: SharedState) -> dict[str, str]:
        """Its version, if that is news."""
        try:
            if seen.info is not None and seen.info.adapter:
                versions = await self._control.adapters(address, seen.info.adapter, reach)
                told = str(versions[-1]) if versions else None
            else:
                told = await self._control.version(address, reach)
        except ControlFailed:
            return {}
        return {} if told == seen.version else {"version": told or ""}
