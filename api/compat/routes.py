"""The seven routes: parse, one verb, render. Failures are reported in the contract's words."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from api.compat import answers, bodies, tasks
from api.compat.arrivals import Arrival, Arrivals, Stopped
from api.compat.clients import CompatClient, client_of, settings_of
from api.compat.jobs import KEPT_MS, CompatJobs
from api.compat.servers import Servers
from api.places import Holding
from api.request.bodies import BESIDE_THE_LOOP, JSON
from api.request.waiting import until_gone
from api.service import Service
from prorl_mq.schema.codec import unpack_trajectory
from prorl_mq.store.payloads import reading as payloads

NOT_RUNNING: Final = "Server is not running. Please start the server first."
STOPPING: Final = "Server is stopping; job cancelled"


class Delivery(Response):
    """The answer of a call; once it has been sent, its job can be found no more."""

    media_type = JSON

    def __init__(self, content: bytes, held: contextlib.AsyncExitStack, sent: Callable[[], Awaitable[None]]) -> None:
        super().__init__(content)
        self._held, self._sent = held, sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)
            await self._sent()


class Routes:
    """The endpoints of one process."""

    _jobs: CompatJobs
    _servers: Servers

    def __init__(self, service: Service) -> None:
        self._service = service

    @contextlib.asynccontextmanager
    async def running(self, timeout_s: int) -> AsyncIterator[None]:
        """Requests can be answered within this context."""
        arrivals = Arrivals(self._service.store)
        self._jobs = CompatJobs(self._service.store, arrivals, timeout_s=timeout_s)
        self._servers = Servers(self._service.store, arrivals, self._jobs, self._service.registrar)
        async with arrivals.running():
            yield

    def _counted(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def counted(request: Request) -> Response:
            tenant = client_of(request).tenant
            with Holding(tenant) as holding:
                self._service.admit(request, tenant, holding)
                request.state.holding = holding
                return await endpoint(request)

        return counted

    async def start(self, request: Request) -> Response:
        client = client_of(request)
        with failing("Failed to start server"):
            started = await self._servers.start(client)
        if not started:
            raise HTTPException(400, "Server is already running")
        return said("Server started successfully")

    async def stop(self, request: Request) -> Response:
        client = await self._running(request)
        try:
            await self._servers.stop(client)
        except Exception:
            return said("Force killed all server process resources.")
        return said("Server stopped successfully")

    async def status(self, request: Request) -> Response:
        client = await self._running(request)
        return Response(msgspec.json.encode(await self._servers.status(client)), media_type=JSON)

    async def add_backend(self, request: Request) -> Response:
        client = client_of(request)
        address: str = (await bodies.read(request, {"address": str}, {}))["address"]
        with failing("Failed to add LLM server"):
            await self._servers.add_backend(client, address)
            running = await self._servers.running(client)
        return said(f"{'Added' if running else 'Buffered'} LLM server address: {address}")

    async def clear_backends(self, request: Request) -> Response:
        client = client_of(request)
        with failing("Failed to clear LLM servers"):
            await self._servers.clear_backends(client)
            running = await self._servers.running(client)
        return said(f"Cleared {'all' if running else 'buffered'} LLM server addresses")

    async def cancel(self, request: Request) -> Response:
        client = client_of(request)
        job_id: str = (await bodies.read(request, {"job_id": str}, {}))["job_id"]
        await self._running(request)
        with failing(f"Failed to cancel job {job_id}"):
            await self._jobs.cancel(client, job_id)
        return said(f"Cancel requested for job {job_id}")

    async def process(self, request: Request) -> Response:
        client = client_of(request)
        given = await bodies.read(request, {"instance": dict, "sampling_params": dict}, {"job_id": str})
        await self._running(request)
        with failing("Failed to process job"):
            call = tasks.rollout(given)
            if not await self._servers.has_backend(client):
                raise ValueError("No LLM server addresses added")
            return await self._answer(request, client, call)

    async def _answer(self, request: Request, client: CompatClient, call: tasks.CompatRollout) -> Response:
        """Waits for the job; if the caller or this process goes away, the next caller that asks for the job gets it."""
        held, limit = contextlib.AsyncExitStack(), asyncio.timeout(2 * settings_of(request).timeout_s + 10)
        try:
            async with limit:
                waiting = held.enter_async_context(self._jobs.rolled_out(client, call))
                arrival = await until_gone(request, waiting, self._service.draining.wait())
        except TimeoutError:
            if not limit.expired():
                raise
            await self._jobs.cancel(client, call.job_id)
            raise HTTPException(504, "Processing timed out") from None
        if arrival is None:
            return detail(503, NOT_RUNNING)
        try:
            content = await self._content(client.tenant, call, arrival)
        except BaseException:
            await held.aclose()
            raise

        async def sent() -> None:
            await self._jobs.forget(client, [arrival])
            await self._jobs.forget_all(client, idle_ms=KEPT_MS)

        return Delivery(content, held, kept if await request.is_disconnected() else sent)

    async def _content(self, tenant: str, call: tasks.CompatRollout, arrival: Arrival) -> bytes:
        sample = answers.shown(arrival.record)
        name = sample.trajectory if sample else None
        blob = await payloads.get(self._service.store, tenant, name) if name else None
        trajectory = await unpack_trajectory(blob) if blob else None
        made = answers.body(call, arrival.record, trajectory)
        if blob is None or len(blob) < BESIDE_THE_LOOP:
            return msgspec.json.encode(made)
        return await asyncio.to_thread(msgspec.json.encode, made)

    async def _running(self, request: Request) -> CompatClient:
        client = client_of(request)
        if not await self._servers.running(client):
            raise HTTPException(503, NOT_RUNNING)
        return client

    def table(self) -> list[Route]:
        """Each route twice: for a client that is known by its address, and for one that is named in the path."""
        rows = (
            ("start", self.start, "POST"),
            ("stop", self.stop, "POST"),
            ("status", self.status, "GET"),
            ("add_llm_server", self.add_backend, "POST"),
            ("clear_llm_server", self.clear_backends, "POST"),
            ("cancel", self.cancel, "POST"),
            ("process", self.process, "POST"),
        )
        made = [
            Route(f"{prefix}/{name}", self._counted(endpoint), methods=[method])
            for prefix in ("", "/clients/{client}")
            for name, endpoint, method in rows
        ]
        return [*made, Route("/healthz", health, methods=["GET"])]


async def health(_: Request) -> Response:
    """The process answers."""
    return said("ok")


async def kept() -> None:
    """The caller had left before its answer: it may come back for it."""


@contextlib.contextmanager
def failing(what: str) -> Iterator[None]:
    """Every fault is a 500 with its name and its words."""
    try:
        yield
    except Stopped:
        raise HTTPException(500, f"{what}: {STOPPING}") from None
    except HTTPException as error:
        raise HTTPException(500, f"{what}: {error.status_code}: {error.detail}") from None
    except Exception as error:
        raise HTTPException(500, f"{what}: {type(error).__name__}: {error}") from error


def said(status: str) -> Response:
    return Response(msgspec.json.encode({"status": status}), media_type=JSON)


def detail(code: int, text: Any) -> Response:
    return Response(msgspec.json.encode({"detail": text}), code, media_type=JSON)
