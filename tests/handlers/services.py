"""Stand-ins for services that score: real HTTP on loopback, told what to answer."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prorl_mq.process.http_server import HttpRequest, HttpResponse, HttpServer

Answer = Callable[[dict[str, Any]], Any]
DROPS = b"<the connection is dropped>"  # in place of an answer


@asynccontextmanager
async def answering(answer: Answer, *, status: int = 200) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Its URL, and the bodies that it was asked with. Bytes are answered as they are."""
    asked: list[dict[str, Any]] = []

    async def handle(request: HttpRequest) -> HttpResponse:
        asked.append({"path": request.path, "headers": dict(request.headers), **json.loads(request.body)})
        said = answer(asked[-1])
        if said is DROPS:
            return HttpResponse(cut_after=0)
        return HttpResponse(status=status, body=said if isinstance(said, bytes) else json.dumps(said).encode())

    server = HttpServer(handle)
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}", asked
    finally:
        await server.stop()
