"""The Starlette application with the contract of ProRL Agent's first release."""

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from api.compat.bodies import Unprocessable
from api.compat.entrance import Entrance
from api.compat.routes import Routes, detail
from api.config import ApiSettings
from api.hosts import guarded
from api.problems import Problem
from api.service import Service
from prorl_mq.process.tracing import Tracing


def create_app(settings: ApiSettings, *, maintained: bool = True, tracing: Tracing | None = None) -> Starlette:
    """`maintained` false leaves the maintenance duties to other processes."""
    service, compat = Service(settings, tracing), settings.compat
    assert compat is not None
    routes = Routes(service)
    asked = [Middleware(Entrance, callers=service.callers)] if settings.tokens else []

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service.running(maintained=maintained), routes.running(compat.timeout_s):
            yield

    app = Starlette(
        routes=routes.table(),
        lifespan=lifespan,
        middleware=[*guarded(settings), *asked],
        exception_handlers=dict.fromkeys((Problem, Unprocessable, HTTPException, Exception), _fault),
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


async def _fault(_: Request, error: Exception) -> Response:
    """Every fault has the contract's form: a `detail`."""
    match error:
        case Unprocessable():
            return detail(422, error.detail)
        case HTTPException():
            return detail(error.status_code, error.detail)
        case Problem():
            return detail(error.status, str(error))
        case _:
            return detail(500, f"{type(error).__name__}: {error}")
