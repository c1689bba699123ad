"""The pools as a RUN worker sees them: a backend for each attempt, taken from the Redis heap at its first call."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import msgspec

from prorl_mq.clock import monotonic
from prorl_mq.schema.codec import decode
from prorl_mq.schema.policy import adapter_name
from prorl_mq.store import pools as backends
from prorl_mq.store.pools import BackendInfo, PoolView, Transition, nobody
from prorl_mq.store.server.tracking import TrackedRedis
from prorl_mq.store.store import Store
from workers import metrics
from workers.inference import logprobs
from workers.inference.assignment import Endpoint, TurnUnderWay, WireProtocol
from workers.inference.clients import InferenceClients
from workers.inference.logprobs import LogprobMode, LogprobsRefused
from workers.inference.policy import StickyPolicy
from workers.inference.probe import probe
from workers.inference.protocol import Completion, InferenceError, NoBackend
from workers.inference.run_clock import RunClock
from workers.inference.waits import Waits
from workers.inference.watching import LATE_S, CallWatch
from workers.stages.calls import Calls
from workers.stages.rooms import AttemptSeat, Rooms
from workers.stages.staleness import Staleness
from workers.stages.work import Work

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 2.0
FRESH_S: Final = 0.25  # how long a look at a pool is good for where Redis does not tell its changes
ALIVE_EVERY_S: Final = 1.0  # between two questions whether Redis would tell them
PROBED: Final = 4  # backends that one assignment probes in vain before it gives up
HOLD_S: Final = 30.0  # how long a turn waits for its own backend to be updated before it takes another
log = logging.getLogger("workers.stages.backends")


class _Look(NamedTuple):
    """A pool as it was read, and what was known when the reading began."""

    view: PoolView
    changes: int  # of it that had been told
    until: float  # it may be believed so long without news


class PoolViews:
    """Pools as this process sees them. Where Redis tells changes (`tracked`), one is read again when it has changed;
    else a look is good for a quarter of a second. One look serves all the jobs of this process.
    """

    def __init__(self, store: Store, tracked: TrackedRedis | None = None) -> None:
        told = tracked and Store(tracked, store.keys, name=store.name, outage_ms=store.outage_ms)
        self._store = told or store
        self._tracked = tracked
        if tracked is not None:
            tracked.told = self._told
        self._looks: dict[str, _Look] = {}
        self._pools: dict[bytes, str] = {}  # by the keys that hold them
        self._changes: Counter[str] = Counter()
        self._looking: dict[str, asyncio.Lock] = {}
        self._moved = asyncio.Event()

    async def view(self, pool: str) -> PoolView:
        if (known := self._known(pool)) is not None:
            return known
        async with self._looking.setdefault(pool, asyncio.Lock()):
            if (known := self._known(pool)) is not None:
                return known
            if self._tracked is not None:
                await self._tracked.listen()
            for key in (self._store.keys.pool_info(pool), self._store.keys.policy(pool)):
                self._pools[key.encode()] = pool
            changes = self._changes[pool]
            found = await backends.view(self._store, pool)
            self._looks[pool] = _Look(found, changes, monotonic() + FRESH_S)
            return found

    def look_again(self, pool: str) -> None:
        """Discards the known state of a pool, which is out of date."""
        self._looks.pop(pool, None)

    async def moved(self, within_s: float) -> None:
        """Waits until some pool has changed, or for so long; for longer where changes are told."""
        if self._tracked is not None and self._tracked.certain:
            within_s = ALIVE_EVERY_S
            await self._tracked.alive()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._moved.wait()
        self._moved.clear()

    def _known(self, pool: str) -> PoolView | None:
        look = self._looks.get(pool)
        if look is None or look.changes != self._changes[pool]:
            return None
        certain = self._tracked is not None and self._tracked.certain
        return look.view if certain or monotonic() <= look.until else None

    def _told(self, keys: list[bytes] | None) -> None:
        told = self._pools if keys is None else self._pools.keys() & keys  # all of them: some may just be read
        self._changes.update({self._pools[key] for key in told})
        self._moved.set()


class Pools:
    """Pools as this process knows them: their state, and the protocol of each backend, once probed."""

    def __init__(
        self, store: Store, clients: InferenceClients, waits: Waits | None = None, tracked: TrackedRedis | None = None
    ) -> None:
        self.store = store
        self.waits = waits or Waits()
        self._views = PoolViews(store, tracked)
        self.view, self.look_again = self._views.view, self._views.look_again
        self.calls = Calls(clients, self.view, self._views.moved)
        self.rooms = Rooms(store, self.view, self.waits)
        self._clients = clients
        self._watch = CallWatch(self.waits)
        self._probed: dict[BackendInfo, Endpoint] = {}

    def policy(self, work: Work, clock: RunClock) -> StickyPolicy:
        """The policy for one attempt."""
        return StickyPolicy(
            job_id=work.held.ref,
            token=work.held.token,
            assigner=HeapAssigner(self, work),
            clients=self.calls.of(work.spec.pool),
            clock=clock,
            watch=self._watch,
        )

    async def observe(self, pool: str, address: str, transition: Transition, view: PoolView | None = None) -> None:
        """Tells all workers what a call has shown of a backend; costs nothing where that changes nothing. `view`: the
        pool as the caller has just seen it.
        """
        seen = (view or await self.view(pool)).backends.get(address)
        if seen is None or (transition is backends.call_succeeded and transition(seen.breaker, 0) == seen.breaker):
            return
        await backends.observe(self.store, pool, address, seen.breaker, transition)
        self.look_again(pool)

    async def describe(self, pool: str, known: BackendInfo) -> Endpoint:
        """The facts needed to call a backend. Raises `InferenceError` if it does not answer its probe."""
        self._clients.transport.judge(known.address, known.reach)
        if known not in self._probed:
            protocols = [WireProtocol(known.protocol)] if known.protocol else list(WireProtocol)
            found = await probe(self._clients, known.address, model=known.model, protocols=protocols)
            wrong = logprobs.told(found.info.logprobs) if found.info.logprobs is LogprobMode.RAW else ""
            if wrong:
                log.warning("backend %s: %s", known.address, wrong)
            await self._note(pool, known.address, wrong)
            self._probed[known] = msgspec.structs.replace(found.info, address=known.address)
        return self._probed[known]

    def forget(self, address: str) -> None:
        """It may come back as something else."""
        self._probed = {known: info for known, info in self._probed.items() if known.address != address}

    async def _note(self, pool: str, address: str, note: str) -> None:
        seen = (await self.view(pool)).backends.get(address)
        if seen is not None and (seen.note or "") != note:
            facts = {"note": note}
            await backends.observe(self.store, pool, address, seen.breaker, lambda now, _ms: now, facts)


class HeapAssigner:
    """Implements `workers.inference.assignment.Assigner` for one attempt of one job."""

    def __init__(self, pools: Pools, work: Work) -> None:
        self._pools = pools
        self._work = work
        self._pool = work.spec.pool
        self._staleness = Staleness()
        self._seat = AttemptSeat(pools.rooms, work, self._move)

    async def assign(self, job_id: str, token: str, *, exclude: AbstractSet[str], to: str = "") -> Endpoint:
        """Waits while the pool has no backend at all: the trainer may bring one. Cancelled with its job.

        One that does not answer its probe is passed over; the error of the last one is raised after `PROBED` of them.
        `to`: the backend to move to, if that may be taken; else the job keeps its own.
        """
        del job_id, token  # both are this work's
        await self._work.hold()
        wait_s, silent, probed = FIRST_WAIT_S, set[str](), 0
        refused: dict[str, LogprobsRefused] = {}
        while True:
            found = await self._ask(exclude | silent | refused.keys(), to)
            to = ""
            if found is not None:
                try:
                    with self._pools.waits.noted_after(LATE_S, f"backend {found.address} has not answered its probe"):
                        endpoint = await self._pools.describe(self._pool, found)
                except InferenceError as error:
                    await self.report_failure(found.address, error)
                    silent.add(found.address)
                    probed += 1
                    if probed == PROBED:
                        raise
                    continue
                if self._takes(endpoint.logprobs):
                    self._seat.latest = endpoint
                    return endpoint
                sampling = self._work.spec.sampling
                refused[found.address] = logprobs.refusal(found.address, endpoint.logprobs, sampling)
                continue
            if exclude:
                raise NoBackend(f"pool {self._pool!r} has no other backend than {', '.join(sorted(exclude))}")
            if refused and refused.keys() >= (await self._pools.view(self._pool)).backends.keys():
                raise next(iter(refused.values()))
            with self._pools.waits.noted(nobody(self._pool, await self._pools.view(self._pool))):
                await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            silent.clear()

    async def _move(self, address: str) -> Endpoint:
        return await self.assign(self._work.held.ref, self._work.held.token, exclude=frozenset(), to=address)

    def _takes(self, mode: LogprobMode) -> bool:
        """True if the batch may have log-probabilities of this mode."""
        return self._work.spec.sampling.raw_logprobs or logprobs.exact(mode, self._work.spec.sampling)

    async def room(self, backend: Endpoint, turn: TurnUnderWay, patience_s: float) -> Endpoint:
        """Holds a turn back while its pool has no room for it: the backend that it may begin on."""
        if not (await self._pools.view(self._pool)).limits:
            return backend
        return await self._seat.begin(backend, turn, patience_s)

    def ended(self, turn: TurnUnderWay) -> None:
        self._seat.ended(turn)

    async def ready(self, backend: Endpoint) -> Endpoint | None:
        """Holds a call back while its backend lacks the announced weights, in the modes that ask for it."""
        give_up = monotonic() + HOLD_S
        while True:
            view = await self._pools.view(self._pool)
            if view.unfit(backend.address) is not None:
                return None
            if not view.behind(backend.address):
                return _as_now(view, backend)
            if monotonic() > give_up:
                return None
            with self._pools.waits.noted(f"backend {backend.address} has not got the announced weights"):
                await asyncio.sleep(FRESH_S)

    async def version(self, address: str) -> str | None:
        """Certain only where the service loads the weights itself, and has loaded all that were announced."""
        self._pools.look_again(self._pool)
        view = await self._pools.view(self._pool)
        seen = view.backends.get(address)
        known = seen.version if seen is not None and view.policy.weights else None
        return None if view.policy.lags(known) else known

    async def report_failure(self, address: str, error: InferenceError) -> None:
        del error  # the policy keeps it for its own answer
        metrics.llm_failures.labels(address).inc()
        self._pools.forget(address)
        await self._pools.observe(self._pool, address, backends.call_failed)

    async def report_success(self, address: str, completion: Completion) -> None:
        if completion.finish_reason == "abort":
            self._pools.look_again(self._pool)  # weights are being changed: the rest must not miss that
        self._seat.served = address
        view = await self._pools.view(self._pool)
        self._staleness.sampled(completion, view.policy.version)
        metrics.answered(address, completion)
        metrics.staleness_versions.observe(self._staleness.behind(view.policy.version))
        await self._pools.observe(self._pool, address, backends.call_succeeded, view)

    async def _ask(self, exclude: AbstractSet[str], to: str) -> BackendInfo | None:
        store, held = self._pools.store, self._work.held
        view = await self._pools.view(self._pool)
        unfit = {address for address in view.backends if view.unfit(address) is not None}
        answer = await store.assign(
            held,
            exclude=sorted(unfit | exclude),
            floor=view.policy.floor,
            labels_are_old=bool(view.policy.weights),
            to=to,
        )
        match answer[0]:
            case b"stale":
                raise InferenceError(f"job {held.ref}: its lease is lost, so it gets no backend")
            case b"none":
                return None
            case _:
                return decode(answer[2], BackendInfo)


def _as_now(view: PoolView, backend: Endpoint) -> Endpoint:
    """The backend as a turn that begins now calls it."""
    seen = view.backends.get(backend.address)
    adapter = seen.info.adapter if seen and seen.info else None
    version = (seen.version or None) if seen and adapter else None
    return msgspec.structs.replace(
        backend,
        cache_salt=_salt(view, backend.address),
        adapter=adapter and adapter_name(adapter, version),
        adapter_version=version,
    )


def _salt(view: PoolView, address: str) -> str | None:
    """Another one whenever the weights may be others: what is cached under old ones is never read under new ones."""
    seen = view.backends.get(address)
    known = [str(part) for part in (view.policy.version, seen.version if seen else None) if part is not None]
    return "policy-" + ":".join(known) if known else None
