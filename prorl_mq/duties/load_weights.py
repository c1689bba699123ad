"""Weights: every backend of a pool gets the weights that were announced for it, if the trainer named any.

One backend is paused, loaded, named, emptied of old prefixes and resumed by calls that may all be repeated, and its
`done` is kept in Redis. So whoever takes over from a process that died begins with the backends that are not done, at
their first step. A backend that comes back, or joins late, tells another version and gets the weights like any other.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from prorl_mq.duties.apart import Apart
from prorl_mq.duties.backend_control import BackendControl, ControlFailed
from prorl_mq.duties.tasks import Tasks
from prorl_mq.rules.reach import Reach
from prorl_mq.schema.ids import tenant_of
from prorl_mq.schema.policy import Announced, BackendProgress, adapter_name, number
from prorl_mq.store import policy as policy_versions
from prorl_mq.store import pools as backends
from prorl_mq.store.pools import SharedState
from prorl_mq.store.store import Store

DUTY: Final = "weights"
LEASE_MS: Final = 5_000
IDLE_S: Final = 0.5
AGAIN_MS: Final = 2_000  # after a failure; doubles with each
LONGEST_AGAIN_MS: Final = 60_000
AT_ONCE: Final = 64  # of one tenant
KEPT: Final = 2  # versions of an adapter that a backend serves
Steps = list[tuple[str, Callable[[], Awaitable[None]]]]


class _Target(NamedTuple):
    pool: str
    address: str
    policy: Announced
    seen: SharedState
    tries: int

    @property
    def adapter(self) -> str | None:
        return self.seen.info.adapter if self.seen.info else None

    @property
    def reach(self) -> Reach | None:
        return self.seen.info.reach if self.seen.info else None


class Weights:
    """The updating loop. What becomes of one backend delays no other pool's."""

    def __init__(self, store: Store, control: BackendControl) -> None:
        self.store = store
        self._control = control
        self._apart = Apart(store, DUTY)
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))

    async def turn(self) -> float:
        """Updates what is or falls behind; keeps the duty's lease meanwhile, and stops if another process has it."""
        reading, busy = Tasks[str](), Tasks[tuple[str, str]]()
        try:
            while True:
                await self._begin(reading, busy)
                if not (reading or busy):
                    return IDLE_S
                await busy.wait(within_s=IDLE_S)
                if not (reading or busy) or await self.store.hold(DUTY, lease_ms=LEASE_MS) != "held":
                    return 0.0
        finally:
            await reading.cancel()
            await busy.cancel()

    async def _begin(self, reading: Tasks[str], busy: Tasks[tuple[str, str]]) -> None:
        """Starts what is behind and is not `busy`; a tenant's many pools delay no other's."""
        reading.end()
        found: dict[str, list[str]] = {}
        for pool in await backends.names(self.store):
            found.setdefault(tenant_of(pool), []).append(pool)
        for tenant, pools in found.items():
            if tenant not in reading:
                reading.start(tenant, self._begin_all(pools, busy))
        await reading.wait(within_s=IDLE_S)

    async def _begin_all(self, pools: Sequence[str], busy: Tasks[tuple[str, str]]) -> None:
        for pool in pools:
            found = None if self._apart.left_out(pool) else await self._apart.do(pool, partial(self._targets, pool))
            for target in found or ():
                name = f"{pool} {target.address}"
                if (pool, target.address) not in busy and not self._apart.left_out(name):
                    busy.start((pool, target.address), self._apart.do(name, partial(self._update, target)))

    async def _targets(self, pool: str) -> list[_Target]:
        """The backends of a pool that should be loaded now."""
        view = await backends.view(self.store, pool)
        if not view.policy.weights:
            return []
        far, now_ms = await policy_versions.progress(self.store, pool), await self.store.now_ms()
        return [
            _Target(pool, address, view.policy, seen, far[address].tries if address in far else 0)
            for address, seen in view.backends.items()
            if wanted(view.policy, seen, far.get(address), now_ms)
        ]

    async def _update(self, target: _Target) -> None:
        """One backend, from its pause to its first turn on the new weights."""
        version = str(target.policy.version)
        steps = self._adapter_steps(target, version) if target.adapter else self._steps(target, version)
        reached = ""
        async with self._slots[tenant_of(target.pool)]:
            try:
                for step, perform in steps:
                    await perform()
                    reached = step
                    if step == "named":  # all workers know at once, before the next probe
                        await self._tell(target, {"version": version, "broken": ""})
                    if not await self._note(target, BackendProgress(step=step, tries=target.tries)):
                        return  # something newer was announced: its turn pauses, loads and resumes
            except ControlFailed as error:
                await self._failed(target, reached, error)

    def _steps(self, target: _Target, version: str) -> Steps:
        control, address, reach, policy = self._control, target.address, target.reach, target.policy
        return [
            ("paused", lambda: control.pause(address, policy.mode, reach)),
            ("loaded", lambda: control.load(address, policy.mode, policy.weights, version, reach)),
            ("named", lambda: control.name(address, version, reach)),
            ("emptied", lambda: control.forget_prefixes(address, reach)),
            ("done", lambda: control.resume(address, reach)),
        ]

    def _adapter_steps(self, target: _Target, version: str) -> Steps:
        """Nothing is paused: turns under way end on the version that they name."""
        return [
            ("named", lambda: self._load_adapter(target, version)),
            ("done", lambda: self._unload_old(target)),
        ]

    async def _load_adapter(self, target: _Target, version: str) -> None:
        """Idempotent: a backend refuses to load a name again."""
        assert target.adapter is not None
        if target.policy.version in await self._control.adapters(target.address, target.adapter, target.reach):
            return
        name = adapter_name(target.adapter, version)
        await self._control.load_adapter(target.address, name, target.policy.weights, target.reach)

    async def _unload_old(self, target: _Target) -> None:
        """All but the newest two: turns under way may still name the one before."""
        assert target.adapter is not None
        for old in (await self._control.adapters(target.address, target.adapter, target.reach))[:-KEPT]:
            await self._control.unload_adapter(target.address, adapter_name(target.adapter, str(old)), target.reach)

    async def _failed(self, target: _Target, reached: str, error: ControlFailed) -> None:
        """A backend that had not begun to load keeps its weights. Half loaded, it gets no turn until it is loaded."""
        if reached == "paused":
            await self._tell(target, {"broken": f"its weights could not be loaded: {str(error)[:300]}"})
        elif not target.adapter:
            with contextlib.suppress(ControlFailed):  # the next try resumes it
                await self._control.resume(target.address, target.reach)
        now_ms = await self.store.now_ms()
        about = BackendProgress(step="failed", tries=target.tries + 1, at_ms=now_ms, error=str(error)[:500])
        await self._note(target, about)

    async def _tell(self, target: _Target, facts: Mapping[str, str]) -> None:
        breaker = target.seen.breaker
        await backends.observe(self.store, target.pool, target.address, breaker, lambda now, _ms: now, facts)

    async def _note(self, target: _Target, about: BackendProgress) -> bool:
        return await policy_versions.note(self.store, target.pool, target.policy.id, target.address, about)


def wanted(policy: Announced, seen: SharedState, far: BackendProgress | None, now_ms: int) -> bool:
    """True if a backend is to be loaded now: it is not done, or reports that it has lost the weights since.

    One that tells a newer version than was announced is left alone: its trainer is ahead of us.
    """
    if seen.draining or seen.breaker.dead:
        return False
    told = number(seen.version)
    if told is not None and policy.version is not None and told > policy.version:
        return False
    if far is None or far.step not in {"done", "failed"}:
        return True
    if far.step == "failed":
        return now_ms >= far.at_ms + min(LONGEST_AGAIN_MS, AGAIN_MS << min(far.tries, 8))
    return seen.version is not None and seen.version != str(policy.version)
