"""The chat APIs of one attempt, on a Unix socket: OpenAI's and Anthropic's routes over one recording.

The key is the attempt's own. Once it is revoked every request is answered 401; then the socket goes.
"""

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import uvicorn
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sandbox.lifetime import label
from workers.agent.template import TemplateError
from workers.external import anthropic, chat, completions, responses
from workers.external.delivery import AnswerDelivery, Piece
from workers.external.history import BadRequest
from workers.external.parameters import ROUTES
from workers.external.recording import Recording
from workers.external.reply import LimitReached, RecordedReply
from workers.external.request import POLICY, SMALL, Given, Request, RequestMemory, parameters
from workers.inference.protocol import InferenceError

MAX_BODY_BYTES = 32 << 20
OPENS_S: Final = 10.0  # of waiting: then a stream opens without its answer
BEATS_S: Final = 10.0
_ANSWERED: Final = (BadRequest, LimitReached, InferenceError, TemplateError)  # with a status of their own
_SESSIONS: Final = ("x-claude-code-agent-id", "thread-id", "x-session-id", "x-claude-code-session-id")


class ChatApi(Protocol):
    """One API: how its requests are read and its answers told. `beats`: heartbeats that the stream has had so far."""

    def read(self, given: Given, memory: RequestMemory, /) -> Request: ...
    def written(self, reply: RecordedReply, asked: Request, created: int, /) -> Mapping[str, Any]: ...
    def events(self, reply: RecordedReply, asked: Request, created: int, beats: int, /) -> Iterator[str]: ...
    def heartbeat(self, asked: Request, created: int, beats: int, /) -> str: ...
    def failure(self, error: Mapping[str, Any], /) -> str: ...


WIRES: Final[Mapping[str, ChatApi]] = {
    "/v1/chat/completions": chat,
    "/v1/messages": anthropic,
    "/v1/responses": responses,
    "/v1/completions": completions,
}


class Gateway:
    """Serves from `async with` on. `key` is what the harness must send."""

    def __init__(self, recording: Recording) -> None:
        self.key: str = secrets.token_urlsafe(24)
        self._recording = recording
        self._names = (POLICY, SMALL, *recording.others)
        self._memory = {route: RequestMemory() for route in WIRES}
        self._revoked = False
        self.refused = ""  # why the last request got 400, while none has been answered since
        routes = [Route(route, self._asked, methods=["POST"]) for route in WIRES]
        routes += [Route("/v1/models", self._models), Route("/v1/models/{name:path}", self._models)]
        self.app = Starlette(routes=routes, exception_handlers={404: _no_route, 405: _no_route})

    @contextlib.asynccontextmanager
    async def listening(self, door: Path) -> AsyncIterator[None]:
        """On the socket in a sandbox's door. Requests that are under way when the context ends are cancelled."""
        (door / label.SOCKET).unlink(missing_ok=True)  # of a worker that died during the attempt before
        with label.listen(door) as sock:
            (door / label.SOCKET).chmod(0o666)  # the sandbox's user is another; the directory's name is the secret
            server = _server(self.app)
            await server.startup([sock])
            try:
                yield
            finally:
                self.revoke()
                await asyncio.shield(_ended(server, sock))

    def revoke(self) -> None:
        """The attempt is over: the key is worth nothing from now on."""
        self._revoked = True

    def _refused(self, request: HttpRequest) -> Response | None:
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if not self._revoked and hmac.compare_digest(given.encode(), self.key.encode()):
            return None
        return _error(401, "authentication_error", "this key is not that of a running attempt")

    async def _models(self, request: HttpRequest) -> Response:
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "prorl-mq"} for name in self._names]
        name = request.path_params.get("name")
        one = next((each for each in models if each["id"] == name), None)
        if name is not None and one is None:
            found: Response = _error(404, "not_found_error", f"there is no model {name!r}: {', '.join(self._names)}")
        else:
            found = JSONResponse(one or {"object": "list", "data": models})
        return self._refused(request) or found

    async def _asked(self, request: HttpRequest) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        route, created = request.url.path, int(time.time())
        wire = WIRES[route]
        try:
            body = await _body(request)
            asked = self._read(wire, body, route)
            session = next((found for name in _SESSIONS if (found := request.headers.get(name))), "")
            recording = self._recording.of(asked.model)
            work = asyncio.ensure_future(self._ask(recording, asked, session))
            reply = await _unless_gone(request, work, OPENS_S if asked.stream else None)
        except Exception as error:
            status, told = _fault(error, route)
            return JSONResponse({"type": "error", "error": told}, status_code=status)
        if not asked.stream and reply is not None:
            text = json.dumps(wire.written(reply, asked, created))
            return AnswerDelivery(_whole(text), lambda: recording.lost(reply), media_type="application/json")
        return _stream(recording, wire, asked, created, work, route)

    def _read(self, wire: ChatApi, body: bytes, route: str) -> Request:
        """The request under the name of the model that answers it, which the answer tells. Raises `BadRequest`."""
        with self._noting():
            asked = _read(wire, body, route, self._memory[route])
        return asked if asked.model in self._names else replace(asked, model=POLICY)

    async def _ask(self, recording: Recording, asked: Request, session: str) -> RecordedReply:
        side = asked.model == SMALL
        try:
            with self._noting():
                reply = await recording.ask(
                    asked.history, asked.tools, asked.max_tokens, stop=asked.stop, side=side, session=session
                )
        except _ANSWERED:
            raise
        except Exception as error:  # ours: whatever the harness makes of it is not the policy's work
            recording.fail(error)
            raise InferenceError(f"the gateway has failed: {type(error).__name__}") from error
        self.refused = ""
        return reply

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except (BadRequest, TemplateError) as error:
            self.refused = str(error)
            raise


def _stream(
    recording: Recording, wire: ChatApi, asked: Request, created: int, work: asyncio.Future[RecordedReply], route: str
) -> AnswerDelivery:
    """The events of an answer, which may still be to come."""

    async def events() -> AsyncIterator[Piece]:
        beats = 0
        try:
            while not work.done():
                yield wire.heartbeat(asked, created, beats), False
                beats += 1
                await asyncio.wait({work}, timeout=BEATS_S)
            found = list(wire.events(work.result(), asked, created, beats))
        except _ANSWERED as error:
            yield wire.failure(_fault(error, route)[1]), False
        else:
            for place, event in enumerate(found, 1):
                yield event, place == len(found)

    def lost() -> None:
        if not work.cancel() and not work.cancelled() and work.exception() is None:
            recording.lost(work.result())

    return AnswerDelivery(events(), lost, media_type="text/event-stream")


def _read(wire: ChatApi, body: bytes, route: str, memory: RequestMemory) -> Request:
    """Raises `BadRequest`, for values of another shape than the API's too."""
    given: Given = {}
    try:
        given = parameters(body, ROUTES[route])
        return wire.read(given, memory)
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply: send it flatter") from error
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        said = f"a value in the body has the wrong type ({type(error).__name__}: {error})"
        raise BadRequest(f"{said}. Send each as the API defines it; given: {', '.join(sorted(given))}") from error


async def _no_route(request: HttpRequest, _: Exception) -> Response:
    asked = f"{request.method} {request.url.path}"
    told = f"{asked} is not served here. Send POST to {', '.join(WIRES)}, or GET to /v1/models"
    return _error(404, "not_found_error", told)


async def _whole(text: str) -> AsyncIterator[Piece]:
    yield text, True


def _server(app: Starlette) -> uvicorn.Server:
    """One among many in its process: without uvicorn's own loop, which takes the process' signals and ticks."""
    config = uvicorn.Config(app, log_level="critical", access_log=False, ws="none", lifespan="off")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


async def _ended(server: uvicorn.Server, sock: socket.socket) -> None:
    """Nothing of it is left in the event loop: neither listeners nor requests."""
    server.force_exit = True
    await server.shutdown([sock])
    tasks = tuple(server.server_state.tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _body(request: HttpRequest) -> bytes:
    pieces, size = [], 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise BadRequest(f"a request has at most {MAX_BODY_BYTES >> 20} MiB")
    return b"".join(pieces)


async def _unless_gone(
    request: HttpRequest, work: asyncio.Future[RecordedReply], timeout_s: float | None
) -> RecordedReply | None:
    """The reply, or None if it is not there in time. A client that goes away takes its completion with it."""
    gone = asyncio.ensure_future(_disconnected(request))
    late = False
    try:
        both: set[asyncio.Future[Any]] = {work, gone}
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED, timeout=timeout_s)
        late = not done
        if late:
            return None
        if not work.done():
            raise BadRequest("the client has gone")
        return work.result()
    finally:
        ended: list[asyncio.Future[Any]] = [gone] if late else [work, gone]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)


async def _disconnected(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _fault(error: Exception, route: str) -> tuple[int, dict[str, Any]]:
    """The status and the words of an error, in which harnesses do not try again what cannot be had."""
    match error:
        case LimitReached() if error.stop.truncated_by == "context":
            return 400, _told("invalid_request_error", f"{error}: maximum context length", "context_length_exceeded")
        case LimitReached() if route == "/v1/responses":  # Codex repeats what is 403
            return 400, _told("invalid_request_error", str(error), "limit_reached")
        case LimitReached():
            return 403, _told("permission_error", str(error), "limit_reached")
        case BadRequest() | TemplateError():
            return 400, _told("invalid_request_error", str(error))
        case InferenceError():
            return 503, _told("api_error", f"{type(error).__name__}: {error}")
        case _:
            raise error


def _told(kind: str, message: str, code: str | None = None) -> dict[str, Any]:
    return {"type": kind, "message": message, "code": code}


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"type": "error", "error": _told(kind, message)}, status_code=status)
