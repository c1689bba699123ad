"""State shared by the routes of one process: settings, the verbs, and whether the process is shutting down."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from prometheus_client import REGISTRY
from starlette.requests import Request

from api.callers import Callers
from api.config import ApiSettings
from api.listeners import listeners
from api.live import Follower
from api.new_results import NewResults
from api.places import BODIES, COMPAT, POLLS, REQUESTS, STREAMS, Holding, Places
from api.problems import Problem
from api.tokens import Caller
from prorl_mq import duties
from prorl_mq.clock import monotonic
from prorl_mq.process.connections import connection_of, most_open
from prorl_mq.process.loop_lag import LoopLag
from prorl_mq.process.tracing import Tracing
from prorl_mq.schema.ids import TenantId
from prorl_mq.service import overview
from prorl_mq.service.advice.bottleneck import Advice
from prorl_mq.service.advice.facts import advise
from prorl_mq.service.backends import Registrar, Rights
from prorl_mq.store.archive.place import archive_of
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.payloads.place import payloads_of
from prorl_mq.store.server.connection import connect
from prorl_mq.store.store import Store

CONNECTIONS: Final = 16
WAITING: Final = 128  # connections that a command may block: the compatible routes have one for each client
LAG = LoopLag(REGISTRY)  # one event loop a process
FRESH_S: Final = 1.0
T = TypeVar("T")


class Memo(Generic[T]):
    """A value with many readers that is computed at most once a second; concurrent readers share one computation."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._made: tuple[float, T] | None = None

    async def get(self) -> T:
        """The value, at most a second old."""
        async with self._lock:
            if self._made is None or monotonic() - self._made[0] > FRESH_S:
                self._made = (monotonic(), await self._make())
            return self._made[1]


class Service:
    """One API process."""

    def __init__(self, settings: ApiSettings, tracing: Tracing | None = None) -> None:
        self.settings = settings
        self.tracing = tracing
        self.draining = asyncio.Event()
        self.callers = Callers(settings)
        tenants, times = len(settings.tokens), 1 if settings.compat is None else COMPAT
        self.requests = Places(times * REQUESTS, tenants, "requests are in work at", again_s=1)
        bodies = times * max(BODIES, 4 * settings.max_body_bytes)
        self.bodies = Places(bodies, tenants, "bytes of bodies lie at", again_s=1)
        self.connections = Places(most_open(), tenants, "connections are open at", again_s=1)
        self.polls = Places(POLLS, tenants, "requests wait for results at")
        self.streams = Places(STREAMS, tenants, "event streams come from")
        self.registrar = Registrar(self._rights(), lambda: listeners(settings))
        self._store: Store | None = None
        self._looking: Store | None = None
        self._follower: Follower | None = None
        self._new_results: NewResults | None = None
        self.overview = Memo(lambda: overview.read(self.looking))
        self._advice: dict[TenantId, Memo[Advice]] = {}

    def advice(self, tenant: TenantId) -> Memo[Advice]:
        """The limit of the service now, as one tenant may see it."""
        return self._advice.setdefault(tenant, Memo(lambda: advise(self.looking, tenant)))

    @property
    def follower(self) -> Follower:
        if self._follower is None:
            raise RuntimeError("the service has not started")
        return self._follower

    @property
    def new_results(self) -> NewResults:
        if self._new_results is None:
            raise RuntimeError("the service has not started")
        return self._new_results

    @property
    def looking(self) -> Store:
        """The store for metrics and the overview, which show what is there, confirmed or not."""
        if self._looking is None:
            raise RuntimeError("the service has not started")
        return self._looking

    @property
    def store(self) -> Store:
        if self._store is None:
            raise RuntimeError("the service has not started")
        return self._store

    def _rights(self) -> Rights:
        closed = bool(self.callers.tokens) and self.settings.state_dir is None  # its own token is the only user's
        return Rights(declared=self.callers.backends, closed=closed)

    def _other_tenants(self) -> None:
        self.registrar.rights = self._rights()
        for places in (self.connections, self.requests, self.bodies, self.polls, self.streams):
            places.tenants = len(self.callers.tokens)

    def admit(self, request: Request, tenant: TenantId, holding: Holding) -> None:
        """Counts a request, and the connection that it came on, among its tenant's. Raises `Problem` (429)."""
        places, connection = self.connections, connection_of(request.scope)
        if connection is not None:
            try:
                connection.belong(tenant, lambda: places.take(tenant), lambda: places.give(tenant))
            except Problem as problem:
                problem.headers["Connection"] = "close"
                raise
        holding.take(self.requests)

    def drain(self) -> None:
        """Requests that wait are answered now."""
        self.draining.set()
        if self._new_results is not None:
            self._new_results.end()
        if self._follower is not None:
            self._follower.wake()

    @contextlib.asynccontextmanager
    async def running(self, *, maintained: bool = True) -> AsyncIterator[None]:
        """Connects, and runs the maintenance duties, until the context ends."""
        settings = self.settings
        redis = connect(settings.redis, connections=CONNECTIONS, wired="short")
        waiting = connect(settings.redis, connections=WAITING)
        keys = Keys(settings.redis.namespace)
        facts: dict[str, Any] = {"name": settings.name, "outage_ms": settings.outage_ms, "waiting": waiting}
        self._store = Store(
            redis, keys, **facts, synced=settings.synced, payloads=payloads_of(settings.redis),
            archive=archive_of(settings.redis), confirms_reads=True,
        )  # fmt: skip
        self._looking = Store(redis, keys, **facts)
        maintenance = (
            duties.running(
                settings.redis,
                name=settings.name,
                tracing=self.tracing,
                synced=settings.synced,
                registrar=self.registrar,
            )
            if maintained
            else contextlib.nullcontext()
        )
        self._follower, self._new_results = Follower(self._looking), NewResults(self._store)
        try:
            async with (
                maintenance,
                self._new_results.running(),
                _beside(self._follower.follow()),
                _beside(self.callers.follow(self._store, self._other_tenants)),
                _beside(LAG.run()),
            ):
                yield
        finally:
            self.drain()
            self._store = self._looking = self._follower = self._new_results = None
            await waiting.aclose()
            await redis.aclose()
            if self.tracing is not None:
                await asyncio.to_thread(self.tracing.close)


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs work until the context ends."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        yield
        task.cancel()


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def store_of(request: Request) -> Store:
    return service_of(request).store


def tenant_of(request: Request) -> TenantId:
    """The tenant of a request."""
    return caller_of(request).tenant


def holding_of(request: Request) -> Holding:
    """Places of a request; set before the endpoint runs."""
    holding: Holding = request.state.holding
    return holding


def caller_of(request: Request) -> Caller:
    """The sender of a request; set before the endpoint runs."""
    caller: Caller = request.state.caller
    return caller
