"""The chat APIs of one attempt, on a Unix socket: OpenAI's and Anthropic's routes over one recording.

The key is the attempt's own. Once it is revoked every request is answered 401; then the socket goes.
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sandbox.lifetime import label
from workers.agent.template import TemplateError
from workers.agent.tools import Tool
from workers.external import anthropic, chat
from workers.external.history import BadRequest, Said
from workers.external.recording import LimitReached, RecordedReply, Recording
from workers.inference.protocol import InferenceError

MAX_BODY_BYTES = 32 << 20
Read = Callable[[dict[str, Any]], tuple[list[Said], list[Tool], int | None]]


class Gateway:
    """Serves from `async with` on. `key` is what the harness must send."""

    def __init__(self, recording: Recording) -> None:
        self.key: str = secrets.token_urlsafe(24)
        self._recording = recording
        self._revoked = False
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/messages", self._messages, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    @contextlib.asynccontextmanager
    async def listening(self, door: Path) -> AsyncIterator[None]:
        """On the socket in a sandbox's door. Requests that are under way when the context ends are cancelled."""
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

    def _refused(self, request: Request) -> Response | None:
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if not self._revoked and hmac.compare_digest(given.encode(), self.key.encode()):
            return None
        return _error(401, "authentication_error", "this key is not that of a running attempt")

    async def _models(self, request: Request) -> Response:
        model = {"id": chat.MODEL, "object": "model", "created": 0, "owned_by": "prorl-mq"}
        return self._refused(request) or JSONResponse({"object": "list", "data": [model]})

    async def _chat(self, request: Request) -> Response:
        created = int(time.time())

        def stream(reply: RecordedReply, body: dict[str, Any]) -> Iterator[str]:
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return chat.events(reply, created, usage=usage)

        return await self._answer(request, chat.read, lambda reply: chat.written(reply, created), stream)

    async def _messages(self, request: Request) -> Response:
        return await self._answer(request, anthropic.read, anthropic.written, lambda reply, _: anthropic.events(reply))

    async def _answer(
        self,
        request: Request,
        read: Read,
        write: Callable[[RecordedReply], dict[str, Any]],
        stream: Callable[[RecordedReply, dict[str, Any]], Iterator[str]],
    ) -> Response:
        try:
            if (refused := self._refused(request)) is not None:
                return refused
            body = await _body(request)
            history, tools, max_tokens = read(body)
            reply = await _unless_gone(request, self._recording.ask(history, tools, max_tokens))
        except BadRequest as error:
            return _error(400, "invalid_request_error", str(error))
        except LimitReached as error:
            return _limited(error)
        except (InferenceError, TemplateError) as error:
            return _error(503, "api_error", f"{type(error).__name__}: {error}")
        return (
            StreamingResponse(stream(reply, body), media_type="text/event-stream")
            if body.get("stream")
            else JSONResponse(write(reply))
        )


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


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise BadRequest(f"a request has at most {MAX_BODY_BYTES >> 20} MiB")
    try:
        return msgspec.json.decode(bytes(data), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise BadRequest(f"the body is no JSON object: {error}") from error


async def _unless_gone(request: Request, asked: Awaitable[RecordedReply]) -> RecordedReply:
    """The reply; a client that goes away takes its completion with it."""
    work = asyncio.ensure_future(asked)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise BadRequest("the client has gone")
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _limited(error: LimitReached) -> Response:
    """In words that harnesses know, and not to be tried again."""
    if error.stop.truncated_by == "context":
        return _error(400, "invalid_request_error", f"{error}: maximum context length", "context_length_exceeded")
    return _error(403, "permission_error", str(error), "limit_reached")


def _error(status: int, kind: str, message: str, code: str | None = None) -> Response:
    error = {"type": kind, "message": message, "code": code}
    return JSONResponse({"type": "error", "error": error}, status_code=status)
