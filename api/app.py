"""The Starlette application: operations become routes, faults become problem documents."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from api import openapi, problems
from api.config import ApiSettings
from api.hosts import guarded
from api.operations import Operation
from api.places import Holding
from api.problems import Problem
from api.routes import OPERATIONS
from api.service import Service, service_of
from api.ui import page
from prorl_mq.errors import NotFound, ProrlError
from prorl_mq.process.tracing import Tracing
from prorl_mq.schema.ids import run_ref
from prorl_mq.schema.strict import Misfit
from prorl_mq.store.moves import moving
from prorl_mq.store.server.faults import OUTAGES, RedisError

READS_ONLY = "this token reads only: whatever changes something needs the other token of its tenant"
HANDLED = (Problem, Misfit, ProrlError, HTTPException, RedisError, *OUTAGES, Exception)


def create_app(settings: ApiSettings, *, maintained: bool = True, tracing: Tracing | None = None) -> Starlette:
    """`maintained` false leaves the maintenance duties to other processes."""
    service = Service(settings, tracing)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service.running(maintained=maintained):
            yield

    by_path: dict[str, list[Operation]] = {}
    for each in OPERATIONS:
        by_path.setdefault(each.path, []).append(each)
    app = Starlette(
        routes=[*(_route(path, operations) for path, operations in by_path.items()), *page.routes()],
        lifespan=lifespan,
        middleware=guarded(settings),
        exception_handlers=dict.fromkeys(HANDLED, problems.answer),
    )
    app.router.redirect_slashes = False
    document = openapi.document(OPERATIONS, version=_version(), tokens=bool(settings.tokens))
    app.state.service = service
    app.state.openapi = msgspec.json.encode(document)
    return app


def _route(path: str, operations: Sequence[Operation]) -> Route:
    by_method = {each.method: each for each in operations}
    return Route(path, PathOperations(by_method), methods=list(by_method))


class PathOperations:
    """The operations of one path, as an application: of a function Starlette makes one whose three further coroutines
    and second handling of faults a request that waits would hold, too.
    """

    def __init__(self, by_method: Mapping[str, Operation]) -> None:
        self._by_method = by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        operation = self._by_method["GET" if request.method == "HEAD" else request.method]
        if operation.public:
            return await operation.answer(request)
        service = service_of(request)
        caller = service.callers.identify(request.headers.get("authorization"))
        if caller.reads_only and operation.method != "GET":
            raise Problem(403, READS_ONLY, kind="reads-only")
        with Holding(caller.tenant) as holding:
            service.admit(request, caller.tenant, holding)
            request.state.caller, request.state.holding = caller, holding
            try:
                return await operation.answer(request)
            except NotFound:
                run = request.path_params.get(operation.names_run, "").partition(":")[0]
                if run and (moved := await moving.where(service.store, run_ref(caller.tenant, run))) is not None:
                    raise moved from None
                raise


def _version() -> str:
    try:
        return version("prorl-mq")
    except PackageNotFoundError:
        return "0"
