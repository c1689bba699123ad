"""A proxy before a backend that keeps every answer as it was sent: what a trajectory can be compared with afterwards.

    async with Recorder("http://127.0.0.1:8101", Path("answers")) as recorder:
        ... recorder.address ...

Each generating request that was answered becomes two files, NUMBER.request and NUMBER.answer: the bodies, untouched.
A client that goes away takes its request to the backend with it, as without a proxy.
"""

import asyncio
import itertools
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import msgspec

from prorl_mq.process.http_server import HttpRequest, HttpResponse, HttpServer

RECORDED = frozenset({"/inference/v1/generate", "/v1/completions", "/generate"})  # the routes that sample
HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})


class Recorder:
    """Listens on loopback. Several may write to one directory."""

    def __init__(self, upstream: str, directory: Path) -> None:
        self.upstream = upstream.rstrip("/").removesuffix("/v1")
        self.directory = directory
        self._server = HttpServer(self._pass_on)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=128)
        endless = httpx.Timeout(None, connect=5.0)  # the client's own limits hold
        self._http = httpx.AsyncClient(timeout=endless, trust_env=False, limits=limits)
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop()
        await self._http.aclose()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    async def _pass_on(self, request: HttpRequest) -> HttpResponse:
        target = self.upstream + request.path + (f"?{request.query}" if request.query else "")
        kept = {name: value for name, value in request.headers.items() if name not in HOP}
        headers = {**kept, "accept-encoding": "identity"}
        try:
            answer = await self._http.request(request.method, target, content=request.body, headers=headers)
        except httpx.HTTPError as error:
            return _no_answer(f"{self.upstream} did not answer: {type(error).__name__} {error}".rstrip())
        if request.path in RECORDED and answer.status_code == 200:
            await asyncio.to_thread(self._keep, next(self._numbers), request.body, answer.content)
        kind = answer.headers.get("content-type", "application/json")
        return HttpResponse(status=answer.status_code, body=answer.content, content_type=kind)

    def _keep(self, number: int, request: bytes, answer: bytes) -> None:
        name = f"{self._server.port}-{number:06}"
        (self.directory / f"{name}.request").write_bytes(request)
        (self.directory / f"{name}.answer").write_bytes(answer)


def _no_answer(message: str) -> HttpResponse:
    """An error as vLLM words it."""
    return HttpResponse(status=502, body=msgspec.json.encode({"error": {"message": message, "code": 502}}))
