"""Strict decoding of what people write (HTTP bodies, messages of trainers, files): unknown fields are refused with the
nearest valid name.

What the service itself writes is read leniently instead, so that two releases can run at once.
"""

import difflib
import functools
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import inspect

from prorl_mq.schema import amount, forms
from prorl_mq.schema.amount import DEEPEST

T = TypeVar("T")

_PATH: Final = re.compile(r"(?P<said>.*?)(?: - at `(?P<path>.*)`)?", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>[^`]*)`")


class Misfit(ValueError):
    """Data that does not fit its struct. `field` is its JSON path, `nearest` the valid name that was meant."""

    def __init__(self, message: str, *, field: str | None = None, nearest: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.nearest = nearest


def decode_json(data: bytes, kind: type[T]) -> T:
    """Raises `Misfit` for anything that is not JSON or does not fit."""
    try:
        amount.check_json(data)
        plain = msgspec.json.decode(data)
    except amount.TooMuch as error:
        raise Misfit(f"the body is too much: {error}", field="$") from None
    except RecursionError:
        raise Misfit(f"the JSON is nested deeper than {DEEPEST} levels", field="$") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misfit(f"the body is not valid JSON: {error}", field="$") from None
    return convert(plain, kind)


def decode_msgpack(data: bytes, kind: type[T]) -> T:
    """Raises `Misfit` for a value that does not fit, `msgspec.DecodeError` for bytes that are no MessagePack."""
    try:
        amount.check_msgpack(data)
    except amount.TooMuch as error:
        raise Misfit(str(error), field="$") from None
    return _fit(msgspec.msgpack.decode(data), kind)


def convert(plain: Any, kind: type[T]) -> T:
    """Makes a struct of plain dicts and lists. Raises `Misfit`."""
    _check_depth(plain)
    return _fit(plain, kind)


def _fit(plain: Any, kind: type[T]) -> T:
    _check_names(plain, _shape(cast("Hashable", kind)), "$")
    try:
        made = msgspec.convert(plain, kind)
        msgspec.msgpack.encode(made)  # numbers that no stream can carry
    except msgspec.ValidationError as error:
        raise _misfit(str(error)) from None
    except OverflowError:
        raise Misfit("an integer lies outside 64 bits", field="$") from None
    return made


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    return next(iter(difflib.get_close_matches(name[:96], sorted(known), 1)), None)


def _misfit(said: str) -> Misfit:
    match = _PATH.fullmatch(said)
    path = (match["path"] if match else None) or "$"
    if missing := _MISSING.match(said):
        path = f"{path}.{missing['name']}"
    return Misfit(f"{_in_words(match['said'] if match else said)} at {path}", field=path)


def _in_words(said: str) -> str:
    """A text that does not match a pattern, in the words of its form."""
    return next((words for pattern, words in forms.WORDS.items() if said.endswith(f"matching regex {pattern!r}")), said)


@functools.cache
def _shape(kind: Hashable) -> inspect.Type:
    return inspect.type_info(kind)


def _check_names(plain: Any, shape: inspect.Type, path: str) -> None:
    """Goes down where structs may be; a value of a wrong type is left to the conversion."""
    match shape:
        case inspect.Metadata(type=inner):
            _check_names(plain, inner, path)
        case inspect.UnionType(types=types):
            _check_tag(plain, types, path)
            for inner in types:
                if not (isinstance(inner, inspect.StructType) and inner.tag_field and _other(plain, inner)):
                    _check_names(plain, inner, path)
        case inspect.StructType(fields=fields, tag_field=tag) if isinstance(plain, dict):
            known = {field.encode_name: field.type for field in fields}
            _check_fields(plain, known | ({tag: inspect.StrType()} if tag else {}), path)
        case inspect.DictType(value_type=inner) if isinstance(plain, dict) and not _is_leaf(inner):
            _check_fields(plain, dict.fromkeys(plain, inner), path)
        case inspect.ListType(item_type=inner) if isinstance(plain, list) and not _is_leaf(inner):
            for place, value in enumerate(plain):
                _check_names(value, inner, f"{path}[{place}]")


def _check_tag(plain: Any, types: Iterable[inspect.Type], path: str) -> None:
    tags = {str(each.tag): each.tag_field for each in types if isinstance(each, inspect.StructType) and each.tag_field}
    for field in dict.fromkeys(tags.values()) if isinstance(plain, dict) else ():
        given = plain.get(field)
        if isinstance(given, str) and given not in tags:
            nearest = closest(given, tags)
            hint = f"did you mean {nearest!r}?" if nearest else f"known are: {', '.join(sorted(tags))}"
            raise Misfit(f"unknown {field} {given[:96]!r} at {path}: {hint}", field=f"{path}.{field}", nearest=nearest)


def _other(plain: Any, shape: inspect.StructType) -> bool:
    """True if the data names another struct of a tagged union; the conversion refuses a tag that no struct has."""
    return not isinstance(plain, dict) or plain.get(shape.tag_field) != shape.tag


def _check_fields(plain: dict[str, Any], shapes: Mapping[str, inspect.Type], path: str) -> None:
    for name, value in plain.items():
        if name not in shapes:
            raise _unknown(str(name), shapes, path)
        _check_names(value, shapes[name], f"{path}.{name}")


def _is_leaf(shape: inspect.Type) -> bool:
    """Holds no struct: text, numbers, or whatever its owner likes."""
    leaves = inspect.StrType | inspect.IntType | inspect.FloatType | inspect.BoolType | inspect.AnyType
    return isinstance(shape, leaves)


def _unknown(name: str, known: Iterable[str], path: str) -> Misfit:
    nearest = closest(name, known)
    hint = f"did you mean {nearest!r}?" if nearest else f"known are: {', '.join(known)}"
    return Misfit(f"unknown field {name[:96]!r} at {path}: {hint}", field=f"{path}.{name[:96]}", nearest=nearest)


def _check_depth(plain: Any) -> None:
    level, depth = [plain], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise Misfit(f"the JSON is nested deeper than {DEEPEST} levels", field="$")
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += [value for value in each.values() if isinstance(value, dict | list)]
            elif isinstance(each, list):
                below += [value for value in each if isinstance(value, dict | list)]
        level = below
