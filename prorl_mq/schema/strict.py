"""Strict decoding of what people write (HTTP bodies, messages of trainers, files): unknown fields are refused with the
nearest valid name.

What the service itself writes is read leniently instead, so that two releases can run at once.
"""

import difflib
import functools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import inspect

from prorl_mq.schema import amount, forms
from prorl_mq.schema.amount import DEEPEST

T = TypeVar("T")
NESTED: Final = (dict, list)  # a union of the two takes three times as long to compare with
Check = Callable[[Any, str], None]  # of a value at a path; raises `Misfit`

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
    """Raises `Misfit` for a value that does not fit, or that JSON has not: bytes, dates, keys that are no text, what is
    no finite number. Raises `msgspec.DecodeError` for bytes that are no MessagePack.
    """
    try:
        heads = amount.check_msgpack(data)
    except amount.TooMuch as error:
        raise Misfit(str(error), field="$") from None
    plain = msgspec.msgpack.decode(data)
    made = _fit(plain, kind)
    if not heads.plain:
        _refuse_foreign(plain)
    return made


def convert(plain: Any, kind: type[T]) -> T:
    """Makes a struct of plain dicts and lists. Raises `Misfit`."""
    _check_depth(plain)
    return _fit(plain, kind)


def _fit(plain: Any, kind: type[T]) -> T:
    if (check := _check_of(cast("Hashable", kind))) is not None:
        check(plain, "$")
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
def _check_of(kind: Hashable) -> Check | None:
    return _names_in(inspect.type_info(kind))


def _names_in(shape: inspect.Type) -> Check | None:
    """The check for unknown names in a value; None where it holds no struct. A value of a wrong type is left to the
    conversion.
    """
    match shape:
        case inspect.Metadata(type=inner):
            return _names_in(inner)
        case inspect.UnionType(types=types):
            return _union(types)
        case inspect.StructType():
            return _Struct(shape)
        case inspect.DictType(value_type=inner) if below := _names_in(inner):
            return functools.partial(_values, below)
        case inspect.ListType(item_type=inner) if below := _names_in(inner):
            return functools.partial(_items, below)
        case _:
            return None


class _Struct:
    """The names in a struct, and in what its fields hold, which may be such a struct again."""

    def __init__(self, shape: inspect.StructType) -> None:
        self._shape = shape
        self.tag = {shape.tag_field: str(shape.tag)} if shape.tag_field else {}

    @functools.cached_property
    def _fields(self) -> Mapping[str, Check | None]:
        return {field.encode_name: _names_in(field.type) for field in self._shape.fields} | dict.fromkeys(self.tag)

    def __call__(self, plain: Any, path: str) -> None:
        if isinstance(plain, dict):
            fields = self._fields
            for name, value in plain.items():
                if name not in fields:
                    raise _unknown(str(name), fields, path)
                if (check := fields[name]) is not None:
                    check(value, f"{path}.{name}")


def _values(check: Check, plain: Any, path: str) -> None:
    if isinstance(plain, dict):
        for name, value in plain.items():
            check(value, f"{path}.{name}")


def _items(check: Check, plain: Any, path: str) -> None:
    if isinstance(plain, list):
        for place, value in enumerate(plain):
            check(value, f"{path}[{place}]")


def _union(types: Iterable[inspect.Type]) -> Check | None:
    """Of a tagged union the struct that the data names counts; the conversion refuses a tag that no struct has."""
    checks = [check for check in map(_names_in, types) if check is not None]
    tags = {tag: field for check in checks if isinstance(check, _Struct) for field, tag in check.tag.items()}

    def check(plain: Any, path: str) -> None:
        for field in dict.fromkeys(tags.values()) if isinstance(plain, dict) else ():
            given = plain.get(field)
            if isinstance(given, str) and given not in tags:
                raise _no_tag(field, given, tags, path)
        for each in checks:
            if not (isinstance(each, _Struct) and each.tag) or _named(plain, each.tag):
                each(plain, path)

    return check if checks else None


def _named(plain: Any, tag: Mapping[str, str]) -> bool:
    return isinstance(plain, dict) and all(plain.get(field) == name for field, name in tag.items())


def _no_tag(field: str, given: str, tags: Iterable[str], path: str) -> Misfit:
    nearest = closest(given, tags)
    hint = f"did you mean {nearest!r}?" if nearest else f"known are: {', '.join(sorted(tags))}"
    return Misfit(f"unknown {field} {given[:96]!r} at {path}: {hint}", field=f"{path}.{field}", nearest=nearest)


def _unknown(name: str, known: Iterable[str], path: str) -> Misfit:
    nearest = closest(name, known)
    hint = f"did you mean {nearest!r}?" if nearest else f"known are: {', '.join(known)}"
    return Misfit(f"unknown field {name[:96]!r} at {path}: {hint}", field=f"{path}.{name[:96]}", nearest=nearest)


def _refuse_foreign(plain: Any) -> None:
    """Raises `Misfit` with the first value that JSON has not, and where it is."""
    level: list[tuple[str, Any]] = [("$", plain)]
    while level:
        path, value = level.pop()
        match value:
            case dict():
                if odd := [name for name in value if not isinstance(name, str)]:
                    raise Misfit(f"the key {str(odd[0])[:96]!r} at {path} is no text", field=path)
                level += [(f"{path}.{name}", each) for name, each in value.items()]
            case list():
                level += [(f"{path}[{place}]", each) for place, each in enumerate(value)]
            case None | bool() | int() | str():
                pass
            case float() if math.isfinite(value):
                pass
            case _:
                said = str(value) if isinstance(value, float) else f"a value of type {type(value).__name__}"
                raise Misfit(
                    f"{said} at {path}: send text, finite numbers, lists and maps alone, as in JSON", field=path
                )


def _check_depth(plain: Any) -> None:
    level, depth = [each for each in (plain,) if isinstance(each, NESTED)], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise Misfit(f"the JSON is nested deeper than {DEEPEST} levels", field="$")
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [value for values in inside for value in values if isinstance(value, NESTED)]
