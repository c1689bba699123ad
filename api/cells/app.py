"""The router's application: what names a run goes to its cell, everything else is asked of all."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPMethod
from typing import Annotated, Any, Final, NoReturn
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from api import problems
from api.cells import merging, watching
from api.cells.callers import KnownCallers
from api.cells.cell import Cell, CellLost
from api.cells.directory import CellRefusal, Directory, rights
from api.cells.forwarding import passed_on, sent, target
from api.cells.merging import CellAnswers, Document
from api.cells.moving import Mover
from api.hosts import OwnPages
from api.places import STREAMS, Holding, Places
from api.problems import Problem, unavailable
from api.request.bodies import render
from api.request.parameters import check_query
from api.routes.pools import BackendList, PoolList
from api.routes.runs import RunList
from api.routes.service import Access, Readiness
from api.ui import page
from prorl_mq.schema import forms
from prorl_mq.schema.ids import TenantId
from prorl_mq.schema.policy import PolicyStatus
from prorl_mq.schema.strict import Misfit, decode_json
from prorl_mq.service.advice.bottleneck import Advice
from prorl_mq.service.overview import Overview

BODY: Final = 64 << 20  # bytes of one request's body; a cell has its own limit below
OF_STRANGERS: Final = 64 << 10  # bytes of a body that are read before a cell was asked who sends them
BODIES: Final = 512 << 20  # of all that are passed on at one time
LONGEST_S: Final = 3600
READS: Final = ("GET", "HEAD")
_NAME: Final = re.compile(forms.NAME)
Endpoint = Callable[[Request], Awaitable[Response]]


class MoveOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cell that a run is to be in; how long its jobs in flight are waited for."""

    cell: str
    within_s: Annotated[float, Meta(ge=0, le=LONGEST_S)] = 30.0


class _Run(msgspec.Struct):
    """The part of a batch that the router reads."""

    run_id: str


class Router:
    """The endpoints."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.directory = Directory(cells)
        self._bodies = Places(BODIES, 1, "bytes of bodies are passed on by")
        self._streams = Places(STREAMS, 1, "event streams come from")

    # ---- what names a run

    async def of_run(self, request: Request) -> Response:
        """Goes to the cell of the run that the path names; settings may come before the first batch."""
        run = request.path_params["id"].partition(":")[0]
        makes = request.method == "PUT" and "rest" not in request.path_params
        return await self._passed(request, run, makes=makes)

    async def move(self, request: Request) -> Response:
        """Moves a run to another cell, when nothing of it is in flight; says how far that is; or has it back."""
        run, tenant = request.path_params["id"], request.query_params.get("tenant", "")
        check_query(request, ("tenant", "lost") if request.method == HTTPMethod.DELETE else ("tenant",))
        for kind, name in (("run", run), ("tenant", tenant or "none")):
            if not _NAME.match(name):
                detail = f"there is no {kind} {name[:200]!r}: names have letters, digits, '_', '.', '-' only"
                raise Problem(404, detail, field=kind)
        lost = request.query_params.get("lost", "false")
        if lost not in {"true", "false"}:
            raise Problem(422, f"lost is true or false, not {lost[:50]!r}", field="lost")
        mover = Mover(self.directory, run, request.headers, tenant)
        if request.method in READS:
            return render(request, await mover.progress())
        if request.method == HTTPMethod.DELETE:
            return render(request, await mover.back(lost=lost == "true"))
        with Holding(_caller(request)) as holding:
            try:
                order = decode_json(await self._body(request, holding), MoveOrder)
            except Misfit as error:
                raise Problem(422, str(error), field=error.field) from None
        to = self.directory.cells.get(order.cell) or _no_cell(order.cell, self.cells)
        return render(request, await mover.move(to, within_s=order.within_s))

    async def batches(self, request: Request) -> Response:
        with Holding(_caller(request)) as holding:
            body = await self._body(request, holding)
            try:
                run = msgspec.json.decode(body, type=_Run).run_id
            except msgspec.MsgspecError:
                run = ""
            return await self._to(request, run, body, makes=True)

    async def _passed(self, request: Request, run: str, *, makes: bool) -> Response:
        with Holding(_caller(request)) as holding:
            body = b"" if request.method in READS else await self._body(request, holding)
            return await self._to(request, run, body, makes=makes)

    async def _to(self, request: Request, run: str, body: bytes, *, makes: bool) -> Response:
        if not _NAME.match(run):
            return await sent(request, self.directory.any(), body)  # whose answer says what is wrong
        cell = await self.directory.holder(run, request.headers, makes=makes)
        if cell is None and makes:
            cell = await self.directory.place(run, request.headers)
        if cell is None:
            return await sent(request, self.directory.home(run), body)  # whose answer says that there is none
        return await passed_on(request, self.directory, run, cell, body)

    async def _body(self, request: Request, holding: Holding) -> bytes:
        chunks, size = [], 0
        announced = request.headers.get("content-length", "")
        length = int(announced[:20]) if announced.isdigit() else None
        if length is None or length > OF_STRANGERS:
            if length is not None and length > BODY:
                raise _too_large()
            await self.directory.let_in(rights(request.headers))
        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size > BODY:
                    raise _too_large()
                if chunk:
                    holding.take(self._bodies, len(chunk))
                chunks.append(chunk)
        except ClientDisconnect:
            raise Problem(400, "the connection ended before the body did") from None
        return b"".join(chunks)

    # ---- what all are asked

    def merged(self, path: str, shape: Any, merge: Callable[[CellAnswers], Document]) -> Endpoint:
        """An endpoint that makes one answer of all cells'."""

        async def endpoint(request: Request) -> Response:
            query = f"?{request.url.query}" if request.url.query else ""
            told = await merging.asked(self.cells, HTTPMethod.GET, path + query, rights(request.headers), shape=shape)
            return render(request, merge(told))

        return endpoint

    async def cells_now(self, request: Request) -> Response:
        """Each cell, with the caller's rights."""
        headers = rights(request.headers)
        overviews = await merging.asked(self.cells, HTTPMethod.GET, "/v1/overview", headers, shape=Overview)
        runs = await merging.asked(self.cells, HTTPMethod.GET, "/v1/runs", headers, shape=RunList)
        return render(request, merging.cells(self.cells, overviews, runs))

    async def watch(self, request: Request) -> Response:
        """The streams of all cells, or that of the cell of the run that the topic names."""
        if topic := request.query_params.get("topic"):
            return await self._passed(request, topic.partition(":")[0], makes=False)
        headers = rights(request.headers)
        await merging.asked(self.cells, HTTPMethod.GET, "/v1/access", headers, shape=Access)
        seconds = request.query_params.get("seconds", str(LONGEST_S))
        if not (seconds.isascii() and seconds.isdigit() and int(seconds[:9]) <= LONGEST_S):
            raise Problem(422, f"seconds is a number from 0 to {LONGEST_S}, not {seconds[:50]!r}", field="seconds")
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        events = watching.merged(self.cells, headers, after, int(seconds))
        return watching.Stream(events, self._streams, _caller(request))

    async def of_any(self, request: Request) -> Response:
        """Passes on what each cell would answer alike."""
        return await sent(request, self.directory.any(), b"")

    async def metrics(self, request: Request) -> Response:
        headers = rights(request.headers)
        texts = await asyncio.gather(*(_metrics_of(cell, headers) for cell in self.cells))
        found = {cell.name: text for cell, text in zip(self.cells, texts, strict=True) if text is not None}
        up = [f'prorl_cell_up{{cell="{cell.name}"}} {int(cell.name in found)}\n' for cell in self.cells]
        head = "# HELP prorl_cell_up Whether the cell answers\n# TYPE prorl_cell_up gauge\n"
        return Response(merging.metrics(found) + head + "".join(up), media_type="text/plain; version=0.0.4")

    async def health(self, _: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def ready(self, request: Request) -> Response:
        """Ready while one cell is; the others are warnings."""
        told = await merging.asked(self.cells, HTTPMethod.GET, "/readyz", {}, shape=Readiness)
        warnings = [f"cell {name} is not ready" for name in told.unavailable]
        warnings += [f"cell {name}: {line}" for name, each in told.by_cell.items() for line in each["warnings"]]
        pressure = max(each["memory_pressure"] for each in told.by_cell.values())
        return render(request, {"status": "ready", "warnings": warnings, "memory_pressure": pressure})

    # ---- pools, each of which has its backends in several cells

    async def policy(self, request: Request) -> Response:
        """A version is announced in every cell, or the caller is told where it was not."""
        headers, body = rights(request.headers), b""
        if request.method == "POST":
            with Holding(_caller(request)) as holding:
                body = await self._body(request, holding)
            headers |= {"Content-Type": request.headers.get("content-type", "")}
        told = await merging.asked(self.cells, request.method, target(request), headers, body, shape=PolicyStatus)
        if request.method == "POST" and told.unavailable:
            names = ", ".join(told.unavailable)
            raise unavailable(
                f"the version is not announced in {names}, and is in {', '.join(told.by_cell)}: announce it again; "
                "that may be repeated"
            )
        return render(request, merging.policy(told.by_cell) | {"unavailable": told.unavailable})

    async def backends(self, request: Request) -> Response:
        """A backend is in one cell's pool: the one that `cell` names, that has it, or with the fewest of the pool."""
        headers, named = rights(request.headers), request.query_params.get("cell")
        listing = f"/v1/pools/{quote(request.path_params['pool'], safe='')}/backends"
        if request.method in READS:
            told = await merging.asked(self.cells, HTTPMethod.GET, listing, headers, shape=BackendList)
            return render(request, merging.backends(told))
        with Holding(_caller(request)) as holding:
            body = await self._body(request, holding)
            if named is None:
                address = request.query_params.get("address") or _address(body)
                cell = await self._cell_of(address, listing, headers)
            else:
                cell = self.directory.cells.get(named) or _no_cell(named, self.cells)
            return await sent(_without(request, "cell"), cell, body)

    async def _cell_of(self, address: str, listing: str, headers: Mapping[str, str]) -> Cell:
        told = await merging.asked(self.cells, HTTPMethod.GET, listing, headers, shape=BackendList)
        having = {name: each["backends"] for name, each in told.by_cell.items()}
        for name, backends in having.items():
            if address.rstrip("/") in {each["address"] for each in backends}:
                return self.directory.cells[name]
        if told.unavailable:
            lost = ", ".join(told.unavailable)
            raise unavailable(f"cell {lost} does not answer, and may have it: name one with ?cell=, or try again")
        return self.directory.cells[min(having, key=lambda name: len(having[name]))]


async def _metrics_of(cell: Cell, headers: Mapping[str, str]) -> str | None:
    """None where the cell gives none. Raises `CellRefusal` for a caller who may not read them."""
    with contextlib.suppress(CellLost, UnicodeDecodeError):
        answer = await cell.ask(HTTPMethod.GET, "/metrics", headers)
        if 400 <= answer.status < 500:
            raise CellRefusal(answer.status, answer.body, answer.headers)
        if answer.status == 200 and answer.headers.get("Content-Type", "").startswith("text/plain"):
            return answer.body.decode()
    return None


def create_app(cells: Sequence[Cell], *, host: str) -> Starlette:
    """`host`: what the router listens on; on loopback no page of elsewhere may call it."""
    router = Router(cells)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for cell in cells:
                await cell.open()
                stack.push_async_callback(cell.close)
            yield

    kinds = [f"/v1/{kind}/{{id}}" for kind in ("runs", "batches", "groups", "jobs")]
    methods = ["GET", "POST", "PUT", "DELETE"]
    routes = [
        Route("/healthz", router.health),
        Route("/readyz", router.ready),
        Route("/metrics", router.metrics),
        Route("/v1/cells", router.cells_now),
        Route("/v1/runs", router.merged("/v1/runs", RunList, merging.runs)),
        Route("/v1/overview", router.merged("/v1/overview", Overview, merging.overview)),
        Route("/v1/advice", router.merged("/v1/advice", Advice, merging.advice)),
        Route("/v1/pools", router.merged("/v1/pools", PoolList, merging.pools)),
        Route("/v1/pools/{pool}/policy", router.policy, methods=["GET", "POST"]),
        Route("/v1/pools/{pool}/backends", router.backends, methods=["GET", "POST", "DELETE"]),
        Route("/v1/watch", router.watch),
        Route("/v1/batches", router.batches, methods=["POST"]),
        Route("/v1/runs/{id}/move", router.move, methods=["GET", "POST", "DELETE"]),
        *(Route(path, router.of_run, methods=methods) for path in kinds),
        *(Route(f"{path}/{{rest:path}}", router.of_run, methods=methods) for path in kinds),
        *(Route(path, router.of_any) for path in ("/v1/access", "/openapi.json", "/docs")),
        *page.routes(),
    ]
    local = host in {"127.0.0.1", "::1", "localhost"}
    handlers: dict[Any, Any] = dict.fromkeys((Problem, HTTPException, Exception), problems.answer)
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(KnownCallers), Middleware(OwnPages, host=host if local else "")],
        exception_handlers=handlers | {CellRefusal: _refused, CellLost: _lost},
    )
    app.router.redirect_slashes = False
    return app


async def _refused(_: Request, refused: Exception) -> Response:
    assert isinstance(refused, CellRefusal)
    return Response(refused.body, refused.status, refused.headers, problems.MEDIA_TYPE)


async def _lost(_: Request, lost: Exception) -> Response:
    return problems.render(unavailable(f"{lost}: try again"))


def _caller(request: Request) -> TenantId:
    """The holder of what a request takes: the bearer of a token."""
    return TenantId(request.headers.get("authorization", ""))


def _too_large() -> Problem:
    return Problem(413, f"the body is larger than {BODY} bytes: send fewer groups", headers={"Connection": "close"})


def _address(body: bytes) -> str:
    try:
        told = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return ""
    return str(told.get("address", "")) if isinstance(told, dict) else ""


def _no_cell(name: str, cells: Sequence[Cell]) -> NoReturn:
    detail = f"there is no cell {name[:96]!r}: the router's file names {', '.join(cell.name for cell in cells)}"
    raise Problem(404, detail, field="cell")


def _without(request: Request, parameter: str) -> Request:
    """The request without a query parameter of the router's own."""
    query = b"&".join(
        part for part in request.scope["query_string"].split(b"&") if not part.startswith(parameter.encode() + b"=")
    )
    return Request({**request.scope, "query_string": query}, request.receive)
