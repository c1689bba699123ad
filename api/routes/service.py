"""Health and readiness of the process, its metrics, and its own description."""

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, REGISTRY, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from api.gauges import exposition
from api.operations import operation
from api.problems import unavailable
from api.request.bodies import JSON
from api.service import Service, caller_of
from api.ui.page import viewer
from prorl_mq.store.gauges import read
from prorl_mq.store.server import fitness

READY_S = 2.0
PLAIN = "text/plain"
HTML = "text/html"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The process answers."""

    status: str


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """`may`: `read`, all of the tenant's; `act`, also change it."""

    tenant: str
    may: Literal["read", "act"]


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Redis answers and is fit; `warnings` name weaker settings, `memory_pressure` is its used share."""

    status: str
    warnings: Sequence[str]
    memory_pressure: float


@operation("GET", "/healthz", public=True)
async def health() -> Health:
    """The process answers."""
    return Health(status="ok")


@operation("GET", "/readyz", errors=(503,), public=True)
async def ready(service: Service) -> Readiness:
    """Redis answers and is fit.

    503 while Redis does not answer, is unfit, or the process drains.
    """
    if service.draining.is_set():
        raise unavailable("the process is ending")
    try:
        async with asyncio.timeout(READY_S):
            warnings = await fitness.start_up(service.store.redis)
            if service.callers.fault:
                warnings.append("the tokens file was changed and is wrong: see the log; the tokens before still hold")
            pressure = await fitness.pressure(service.store.redis)
    except TimeoutError:
        raise unavailable(f"Redis has not answered within {READY_S:.0f} s") from None
    return Readiness(status="ready", warnings=warnings, memory_pressure=round(pressure, 4))


@operation("GET", "/v1/access")
async def access(request: Request) -> Access:
    """The tenant of the token that the caller presents, and what it opens."""
    caller = caller_of(request)
    return Access(tenant=caller.tenant, may="read" if caller.reads_only else "act")


@operation("GET", "/metrics", answers={200: "Prometheus text"}, media_types=(PLAIN,), errors=(401, 503), public=True)
async def metrics(request: Request, service: Service) -> Response:
    """Numbers for Prometheus.

    Open where only this machine can ask; elsewhere any tenant's token opens it.
    """
    if not service.settings.local:
        service.callers.identify(request.headers.get("authorization"))
    gauges = exposition(await read(service.looking))
    return Response(generate_latest(REGISTRY) + gauges, media_type=CONTENT_TYPE_PLAIN_0_0_4)


@operation("GET", "/openapi.json", answers={200: "OpenAPI 3.1"}, returns=dict, media_types=(JSON,), public=True)
async def openapi(request: Request) -> Response:
    """The OpenAPI document of this interface."""
    return Response(request.app.state.openapi, media_type=JSON)


@operation("GET", "/docs", answers={200: "A page"}, media_types=(HTML,), public=True)
async def docs() -> Response:
    """The OpenAPI document as a page for people."""
    return viewer()
