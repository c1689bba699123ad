"""Request bodies, refused in the contract's words: 422 with one detail for each field that is missing or wrong."""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request

from api.request.bodies import read_bytes
from api.service import service_of

_TYPES: Final[Mapping[type, tuple[str, str]]] = {
    str: ("string_type", "Input should be a valid string"),
    dict: ("dict_type", "Input should be a valid dictionary"),
}


class Unprocessable(Exception):
    """The body does not fit; `detail` is the answer's."""

    def __init__(self, detail: list[dict[str, Any]]) -> None:
        super().__init__("the body does not fit")
        self.detail = detail


async def read(request: Request, required: Mapping[str, type], optional: Mapping[str, type]) -> dict[str, Any]:
    """The body's fields; an optional one may be null. Unknown fields are ignored. Raises `Unprocessable`."""
    data = await read_bytes(request, service_of(request).settings.max_body_bytes)
    if not data:
        raise Unprocessable([_fault("missing", ["body"], "Field required", None)])
    try:
        body = _read(data)
    except (ValueError, RecursionError) as error:
        raise Unprocessable([_fault("json_invalid", ["body", 0], "JSON decode error", {}, error=str(error))]) from None
    if not isinstance(body, dict):
        said = "Input should be a valid dictionary or object to extract fields from"
        raise Unprocessable([_fault("model_attributes_type", ["body"], said, body)])
    faults = [fault for name, kind in required.items() if (fault := _check(body, name, kind))]
    given = {name: kind for name, kind in optional.items() if body.get(name) is not None}
    faults += [fault for name, kind in given.items() if (fault := _check(body, name, kind))]
    if faults:
        raise Unprocessable(faults)
    return body


def _read(data: bytes) -> Any:
    """JSON, in which NaN may stand where a table has no value: clients in Python write it, and v1 takes it."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        if b"NaN" not in data:
            raise
        return json.loads(data)


def _check(body: dict[str, Any], name: str, kind: type) -> dict[str, Any] | None:
    if name not in body:
        return _fault("missing", ["body", name], "Field required", body)
    if isinstance(body[name], kind):
        return None
    form, said = _TYPES[kind]
    return _fault(form, ["body", name], said, body[name])


def _fault(kind: str, place: list[str | int], said: str, given: Any, **context: str) -> dict[str, Any]:
    return {"type": kind, "loc": place, "msg": said, "input": given} | ({"ctx": context} if context else {})
