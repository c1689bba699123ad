"""Health and readiness of the process, its metrics, and its own description."""

import asyncio
from collections.abc import Sequence

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, REGISTRY, generate_latest
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from api.bodies import render
from api.gauges import exposition
from api.operations import JSON, Answer, Operation
from api.problems import unavailable
from api.service import service_of
from api.tokens import tenant_of
from prorl_mq.store.gauges import read
from prorl_mq.store.server import fitness

READY_S = 2.0
PLAIN = "text/plain"
HTML = "text/html"
PAGE_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The process answers."""

    status: str


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Redis answers and is fit; `warnings` name weaker settings, `memory_pressure` is its used share."""

    status: str
    warnings: Sequence[str]
    memory_pressure: float


async def health(request: Request) -> Response:
    return render(request, Health(status="ok"))


async def ready(request: Request) -> Response:
    """503 while Redis does not answer, is unfit, or the process drains."""
    service = service_of(request)
    if service.draining.is_set():
        raise unavailable("the process is ending")
    try:
        async with asyncio.timeout(READY_S):
            warnings = await fitness.start_up(service.store.redis)
            pressure = await fitness.pressure(service.store.redis)
    except TimeoutError:
        raise unavailable(f"Redis has not answered within {READY_S:.0f} s") from None
    return render(request, Readiness(status="ready", warnings=warnings, memory_pressure=round(pressure, 4)))


async def metrics(request: Request) -> Response:
    """Open where only this machine can ask; elsewhere any tenant's token opens it."""
    settings = service_of(request).settings
    if not settings.local:
        tenant_of(request.headers.get("authorization"), settings.tokens)
    gauges = exposition(await read(service_of(request).store))
    return Response(generate_latest(REGISTRY) + gauges, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def openapi(request: Request) -> Response:
    return Response(request.app.state.openapi, media_type=JSON)


async def docs(request: Request) -> Response:
    return HTMLResponse(request.app.state.docs, headers=PAGE_POLICY)


def _look(path: str, name: str, summary: str, endpoint: object, answer: Answer, *errors: int) -> Operation:
    return Operation(
        method="GET",
        path=path,
        id=name,
        tag="service",
        summary=summary,
        endpoint=endpoint,  # type: ignore[arg-type]
        answers={200: answer},
        errors=(422, *errors),
        public=True,
    )


TEXT = Answer(description="Prometheus text", media_types=(PLAIN,))
PAGE = Answer(description="A page", media_types=(HTML,))
DOCUMENT = Answer(description="OpenAPI 3.1", body=dict)
OPERATIONS = (
    _look("/healthz", "health", "The process answers", health, Answer(description="It does", body=Health)),
    _look("/readyz", "ready", "Redis answers and is fit", ready, Answer(description="Yes", body=Readiness), 503),
    _look("/metrics", "metrics", "Numbers for Prometheus", metrics, TEXT, 401),
    _look("/openapi.json", "openapi", "This interface", openapi, DOCUMENT),
    _look("/docs", "docs", "This interface, for people", docs, PAGE),
)
