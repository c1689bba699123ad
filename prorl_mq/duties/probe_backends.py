"""Health: every backend is asked whether it lives, which weights it serves and how loaded it is. Drained ones leave."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from prorl_mq import chance
from prorl_mq.clock import monotonic
from prorl_mq.duties.apart import Apart
from prorl_mq.duties.backend_control import BackendControl, ControlFailed
from prorl_mq.duties.tasks import Tasks
from prorl_mq.rules.breaker import Breaker
from prorl_mq.rules.reach import Reach
from prorl_mq.rules.routing import metrics, pressure
from prorl_mq.rules.routing.pressure import CacheLimit, EngineLoad, Pressure
from prorl_mq.schema.ids import tenant_of
from prorl_mq.store import pools as backends
from prorl_mq.store.pools import SharedState
from prorl_mq.store.store import Store

EVERY_S: Final = 2.0
AT_ONCE: Final = 16  # of one tenant
KEPT_MS: Final = 30_000.0  # a limit stands so long without a look that tells the load
PATIENCE_S: Final = 2.0  # how long one turn waits for its probes; a slower one continues beside the next turns


class BackendHealth:
    """The probing loop. What it finds is in Redis, for all workers.

    A backend that is slow, or whose probe fails in any way, delays no probe of another tenant's; nor do many pools.
    """

    def __init__(self, store: Store, control: BackendControl, *, every_s: float = EVERY_S) -> None:
        self.store = store
        self.every_s = every_s
        self._control = control
        self._pressure = BackendPressure(control)
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
        view = await backends.view(self.store, pool)
        known = view.backends
        jobs = await backends.loads(self.store, pool)
        await self._sweep(pool, known, jobs)
        self._pressure.keep(pool, known)
        for address, seen in known.items():
            name = f"{pool} {address}"
            if (pool, address) not in self._busy and not self._apart.left_out(name):
                weights = view.policy.weights
                loading = bool(weights) and view.policy.lags(seen.version)
                look = partial(self._look, pool, address, seen, jobs.get(address, 0), weights, loading)
                self._busy.start((pool, address), self._apart.do(name, look))

    async def _sweep(self, pool: str, known: Mapping[str, SharedState], jobs: Mapping[str, int]) -> None:
        """Backends that no job holds any more: drained ones leave, those that have left are forgotten."""
        for address, count in jobs.items():
            if count <= 0 and (address not in known or known[address].draining):
                await self.store.leave(pool, address, reason="drained", drain=True, sweep=True)

    async def _look(self, pool: str, address: str, seen: SharedState, jobs: int, weights: str, loading: bool) -> None:
        await asyncio.sleep(self.every_s / 4 * chance.fraction())  # so that probes do not fall together
        async with self._slots[tenant_of(pool)]:
            reach = seen.info.reach if seen.info else None
            alive = await self._control.alive(address, reach)
            transition = backends.probe_answered if alive else backends.probe_missed
            facts = await self._facts(address, reach, seen) if alive else {}
            facts |= await self._model(address, seen, weights) if alive else {}
            breaker = await backends.observe(self.store, pool, address, seen.breaker, transition, facts)
            limit = await self._pressure.look(pool, address, seen, jobs, alive=alive, loading=loading)
            if limit != (seen.room.text if seen.room else ""):  # metrics that are slow delay no word of its health
                await backends.observe(self.store, pool, address, breaker, _unmoved, {"room": limit})

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

    async def _model(self, address: str, seen: SharedState, weights: str) -> dict[str, str]:
        """The model that it names, if that is news. SGLang names the directory of the weights that it has loaded: those
        that we had it load are a version, and no other model.
        """
        try:
            told = await self._control.served(
                address, seen.info.model if seen.info else None, seen.info.reach if seen.info else None
            )
        except ControlFailed:
            return {}
        if told == seen.served or (seen.served and weights and told == weights):
            return {}
        return {"served": told or ""}


def _unmoved(breaker: Breaker, _now_ms: int) -> Breaker:
    return breaker


class _Silence(NamedTuple):
    """A backend whose last look told no load."""

    since_ms: float
    asked_ms: float = -math.inf  # it was asked last

    def due(self, now_ms: float) -> bool:
        """True if it is to be asked now: at each look at first, then seldom."""
        return now_ms - self.since_ms < KEPT_MS or now_ms - self.asked_ms >= KEPT_MS


class BackendPressure:
    """The looks of one process at all backends. Another process that takes the duty over begins with what is known of
    their limits in Redis.
    """

    def __init__(self, control: BackendControl) -> None:
        self._control = control
        self._seen: dict[str, dict[str, tuple[Pressure, EngineLoad]]] = {}  # by pool and address
        self._silent: dict[tuple[str, str], _Silence] = {}

    def keep(self, pool: str, known: Container[str]) -> None:
        """Forgets backends that have left."""
        seen = self._seen.get(pool, {})
        self._seen[pool] = {address: each for address, each in seen.items() if address in known}
        self._silent = {at: each for at, each in self._silent.items() if at[0] != pool or at[1] in known}

    async def look(
        self, pool: str, address: str, seen: SharedState, jobs: int, *, alive: bool, loading: bool = False
    ) -> str:
        """The text of the backend's limit, which `jobs` hold; empty where its pool has room, or it tells no load. One
        that has told it until now keeps its limit for a while; later it is asked once in so long.

        `loading`: it is getting new weights, so requests wait in it whatever its cache has room for.
        """
        now_ms, silent = monotonic() * 1000, self._silent.get((pool, address))
        asks = alive and (silent is None or silent.due(now_ms))
        told = await self._load(address, seen) if asks else None
        found = self._seen.setdefault(pool, {})
        if told is None:
            silent = silent or _Silence(now_ms)
            self._silent[pool, address] = silent._replace(asked_ms=now_ms) if asks else silent
            if now_ms - silent.since_ms < KEPT_MS:
                return seen.room.text if seen.room else ""
            found.pop(address, None)
            return ""
        self._silent.pop((pool, address), None)
        if loading:
            told = told._replace(waiting=0)
        before, last = found.get(address, (_known(seen.room, told), None))
        found[address] = pressure.judge(before, last, told, jobs), told
        if not any(each.pressed for each, _ in found.values()):
            return ""
        return pressure.limit(*found[address]).text

    async def _load(self, address: str, seen: SharedState) -> EngineLoad | None:
        try:
            lines = await self._control.load_lines(address, seen.info.reach if seen.info else None)
        except ControlFailed:
            return None
        return metrics.load(lines, monotonic() * 1000)


def _known(limit: CacheLimit | None, told: EngineLoad) -> Pressure:
    """The pressure that a limit was concluded from, as far as it says."""
    if limit is None:
        return Pressure()
    share = min(pressure.SHARE, max(pressure.LEAST_SHARE, limit.tokens / told.capacity))
    return Pressure(share, pressed=True, behind_ms=told.at_ms if limit.behind else 0.0)
