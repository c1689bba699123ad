"""One operation of the HTTP interface: the routes and the OpenAPI document are both generated from it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

JSON = "application/json"
MSGPACK = "application/msgpack"
EVENT_STREAM = "text/event-stream"

NAME_PATTERN = r"^[A-Za-z0-9_.\-]{1,96}$"


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter. `where` is path, query or header."""

    name: str
    where: str
    schema: Mapping[str, Any]
    description: str
    required: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One successful answer. `body` None: text of the media type."""

    description: str
    body: Any = None
    media_types: tuple[str, ...] = (JSON,)


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path. `public` ones need no token."""

    method: str
    path: str
    id: str
    tag: str
    summary: str
    endpoint: Callable[[Request], Awaitable[Response]]
    answers: Mapping[int, Answer]
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    errors: tuple[int, ...] = ()
    public: bool = False


def name_in_path(name: str, description: str, pattern: str = NAME_PATTERN) -> Parameter:
    schema = {"type": "string", "pattern": pattern}
    return Parameter(name=name, where="path", schema=schema, description=description, required=True)
