"""Request bodies in, answers out: sizes and content types are checked here."""

import asyncio
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api.problems import Problem
from api.service import holding_of, service_of
from prorl_mq.schema.strict import Misfit, decode_json

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
EVENT_STREAM: Final = "text/event-stream"

T = TypeVar("T")
BESIDE_THE_LOOP: Final = 128 * 1024  # bytes: longer bodies are parsed in a thread


async def read_body(request: Request, kind: type[T]) -> T:
    """The body as a struct. Raises `Problem` (413, 415) or `Misfit`."""
    said = request.headers.get("content-type", "")
    media_type = said.partition(";")[0].strip().lower()
    if media_type != JSON:
        raise Problem(415, f"the body's content type is {said[:100]!r}: send {JSON}")
    data = await read_bytes(request, service_of(request).settings.max_body_bytes)
    if not data:
        raise Misfit(f"the body is empty: send a {kind.__name__}", field="$")
    if len(data) < BESIDE_THE_LOOP:
        return decode_json(data, kind)
    return await asyncio.to_thread(decode_json, data, kind)


def render(request: Request, value: Any, status: int = 200) -> Response:
    """A value as JSON, or as MessagePack if the caller prefers that."""
    if wants(request, MSGPACK):
        return Response(msgspec.msgpack.encode(value), status, media_type=MSGPACK)
    return Response(msgspec.json.encode(value), status, media_type=JSON)


def wants(request: Request, media_type: str) -> bool:
    """True if the caller names this media type rather than JSON."""
    accepted = [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")]
    return media_type in accepted and JSON not in accepted[: accepted.index(media_type)]


async def read_bytes(request: Request, limit: int) -> bytes:
    """The raw body. Raises `Problem` (400, 413)."""
    announced = request.headers.get("content-length", "")
    chunks, size, holding, places = [], 0, holding_of(request), service_of(request).bodies
    try:
        if announced.isdigit() and int(announced[:20]) > limit:
            raise _too_large(limit)
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            if chunk:
                holding.take(places, len(chunk))
            chunks.append(chunk)
    except Problem as refused:
        refused.headers["Connection"] = "close"  # the rest of the body is not read
        raise
    except ClientDisconnect:
        raise Problem(400, "the connection ended before the body did") from None
    return b"".join(chunks)


def _too_large(limit: int) -> Problem:
    detail = f"the body is larger than {limit} bytes: send fewer groups at once, each batch under its own batch_id"
    return Problem(413, detail)
