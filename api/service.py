"""What the routes of one process share: settings, the verbs, and whether the process is on its way out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from prometheus_client import REGISTRY
from starlette.requests import Request

from api.config import ApiSettings
from prorl_mq import maintenance
from prorl_mq.broker import Broker
from prorl_mq.connection import connect
from prorl_mq.ids import TenantId
from prorl_mq.keys import Keys
from prorl_mq.loop_lag import LoopLag
from prorl_mq.tracing import Tracing

CONNECTIONS = 16
LAG = LoopLag(REGISTRY)  # one event loop a process


class Service:
    """One API process."""

    def __init__(self, settings: ApiSettings, tracing: Tracing | None = None) -> None:
        self.settings = settings
        self.tracing = tracing
        self.draining = asyncio.Event()
        self.polls = 0  # requests that wait for results now
        self._broker: Broker | None = None

    @property
    def broker(self) -> Broker:
        if self._broker is None:
            raise RuntimeError("the service has not started")
        return self._broker

    @contextlib.asynccontextmanager
    async def running(self, *, maintained: bool = True) -> AsyncIterator[None]:
        """Connects, and runs the maintenance duties, until the context ends."""
        settings = self.settings
        redis = connect(settings.redis, connections=CONNECTIONS)
        waiting = connect(settings.redis, blocking=True, connections=settings.long_polls)
        keys = Keys(settings.redis.namespace)
        self._broker = Broker(redis, keys, name=settings.name, outage_ms=settings.outage_ms, waiting=waiting)
        duties = (
            maintenance.running(settings.redis, name=settings.name, tracing=self.tracing)
            if maintained
            else contextlib.nullcontext()
        )
        lag = asyncio.create_task(LAG.run(), name="loop lag")
        try:
            async with duties:
                yield
        finally:
            lag.cancel()
            self.draining.set()
            self._broker = None
            await waiting.aclose()
            await redis.aclose()
            if self.tracing is not None:
                await asyncio.to_thread(self.tracing.close)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def tenant_of(request: Request) -> TenantId:
    """Whose request it is; set before the endpoint runs."""
    tenant: TenantId = request.state.tenant
    return tenant
