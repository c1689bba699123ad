"""Query parameters as values. Each is declared once: its schema, how its text is read, what a refusal says.

An endpoint declares one as the annotation of an argument: `limit: Annotated[int, whole(1, 200, "...")] = 50`.
"""

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request

from api.problems import Problem

CURSOR: Final = "[0-9]{1,19}(-[0-9]{1,19})?"
RESUME: Final = "Last-Event-ID"


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter in the OpenAPI document. `where` is path, query or header."""

    name: str
    where: str
    schema: Mapping[str, Any]
    description: str
    required: bool = False


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A query parameter. `parse` raises `ValueError`; `wanted` completes "it must be"."""

    schema: Mapping[str, Any]
    description: str
    wanted: str
    parse: Callable[[str], Any]
    blank: bool = False  # an empty text counts as none
    resumed: bool = False  # the header that a reconnecting event source sends takes precedence

    def declared(self, name: str, default: object) -> tuple[Parameter, ...]:
        """As the document shows it. `default` is `...` for a required parameter, None for one without a default."""
        schema = self.schema if default in {..., None} else {**self.schema, "default": default}
        own = Parameter(name=name, where="query", schema=schema, description=self.description, required=default is ...)
        if not self.resumed:
            return (own,)
        about = f"Sent by a reconnecting event source; takes precedence over `{name}`"
        return (own, Parameter(name=RESUME, where="header", schema=self.schema, description=about))

    def read(self, request: Request, name: str, default: object) -> Any:
        """Its value in a request. Raises `Problem` (422)."""
        if self.resumed and (text := request.headers.get(RESUME)):
            return self._value(RESUME, text)
        text = request.query_params.get(name)
        if text is None or (self.blank and not text):
            if default is ...:
                raise Problem(422, f"the parameter {name!r} is missing: it must be {self.wanted}", field=name)
            return default
        return self._value(name, text)

    def _value(self, name: str, text: str) -> Any:
        try:
            return self.parse(text)
        except ValueError:
            detail = f"the parameter {name!r} is {text[:96]!r}: it must be {self.wanted}"
            raise Problem(422, detail, field=name) from None


def check_query(request: Request, known: Collection[str]) -> None:
    """Refuses parameters that the operation does not have, or that occur twice."""
    for name in request.query_params:
        if name not in known:
            close = next(iter(difflib.get_close_matches(name[:96], known, 1)), None)
            hint = f"did you mean {close!r}?" if close else f"known are: {', '.join(known) or 'none'}"
            raise Problem(422, f"unknown parameter {name[:96]!r}: {hint}", field=name[:96], nearest=close)
        if len(request.query_params.getlist(name)) > 1:
            raise Problem(422, f"the parameter {name!r} occurs twice", field=name)


def number(least: float, most: float, description: str) -> Query:
    def parse(text: str) -> float:
        return _within(float(text), least, most)

    schema = {"type": "number", "minimum": least, "maximum": most}
    return Query(schema=schema, description=description, wanted=f"a number from {least:g} to {most:g}", parse=parse)


def whole(least: int, most: int, description: str) -> Query:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()):
            raise ValueError
        return int(_within(int(text[:18]), least, most))

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Query(schema=schema, description=description, wanted=f"a whole number from {least} to {most}", parse=parse)


def flag(description: str) -> Query:
    values = {"true": True, "false": False}
    return Query(
        schema={"type": "boolean"}, description=description, wanted="true or false", parse=lambda t: _one(values, t)
    )


def choice(*values: str, description: str) -> Query:
    known = dict(zip(values, values, strict=True))
    return Query(
        schema={"enum": list(values)}, description=description, wanted=" or ".join(values),
        parse=lambda text: _one(known, text),
    )  # fmt: skip


def text(pattern: str, wanted: str, description: str) -> Query:
    """A text that fits a pattern as a whole."""
    return Query(
        schema={"type": "string", "pattern": f"^{pattern}$"}, description=description, wanted=wanted,
        parse=lambda given: _fitting(pattern, given),
    )  # fmt: skip


def filled(wanted: str, description: str) -> Query:
    """A text that is not empty."""
    return Query(
        schema={"type": "string", "minLength": 1}, description=description, wanted=wanted, parse=str, blank=True
    )


def cursor(description: str, *, resumed: bool = False) -> Query:
    """The position to resume at, from an earlier answer."""
    return Query(
        schema={"type": "string", "pattern": f"^{CURSOR}$"}, description=description,
        wanted="a cursor from an earlier answer, or 0", parse=lambda given: _fitting(CURSOR, given),
        blank=True, resumed=resumed,
    )  # fmt: skip


def _within(value: float, least: float, most: float) -> float:
    if math.isnan(value) or not least <= value <= most:
        raise ValueError
    return value


def _one(known: Mapping[str, Any], text: str) -> Any:
    if text not in known:
        raise ValueError
    return known[text]


def _fitting(pattern: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError
    return text
