"""Query parameters and headers as values; each refusal names the parameter."""

import difflib
import math
import re
from typing import Final

from starlette.requests import Request

from api.operations import Operation
from api.problems import Problem

CURSOR: Final = re.compile(r"[0-9]{1,19}(-[0-9]{1,19})?")


def check_query(request: Request, operation: Operation) -> None:
    """Refuses parameters that the operation does not have, or that stand twice."""
    known = [each.name for each in operation.parameters if each.where == "query"]
    for name in request.query_params:
        if name not in known:
            close = next(iter(difflib.get_close_matches(name[:96], known, 1)), None)
            hint = f"did you mean {close!r}?" if close else f"known are: {', '.join(known) or 'none'}"
            raise Problem(422, f"unknown parameter {name[:96]!r}: {hint}", field=name[:96], nearest=close)
        if len(request.query_params.getlist(name)) > 1:
            raise Problem(422, f"the parameter {name!r} occurs twice", field=name)


def number(request: Request, name: str, default: float, least: float, most: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise _wrong(name, text, f"a number from {least:g} to {most:g}")
    return value


def whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and least <= int(text[:18]) <= most):
        raise _wrong(name, text, f"a whole number from {least} to {most}")
    return int(text)


def flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false")
    if text not in {"true", "false"}:
        raise _wrong(name, text, "true or false")
    return text == "true"


def cursor(request: Request, default: str = "0") -> str:
    """The position to resume at: `Last-Event-ID`, which a reconnecting event source sends, else `after`."""
    for name, text in (
        ("Last-Event-ID", request.headers.get("last-event-id")),
        ("after", request.query_params.get("after")),
    ):
        if text:
            if not CURSOR.fullmatch(text):
                raise _wrong(name, text, "a cursor from an earlier answer, or 0")
            return text
    return default


def _wrong(name: str, text: str, wanted: str) -> Problem:
    return Problem(422, f"the parameter {name!r} is {text[:96]!r}: it must be {wanted}", field=name)
