"""The number of values in encoded data and their nesting, counted before anything is decoded.

A value of one byte becomes an object of sixty: 40 MiB of empty maps are 3 GB and seconds of work. What is refused here
costs the reading of its heads, and none of those that come after the limit.
"""

import re
from typing import Final, NamedTuple

MOST_VALUES: Final = 3_000_000  # 100,000 groups of 30 values
DEEPEST: Final = 64  # levels of nesting: more would break readers that recurse
_JSON_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # to the end where it has none
_LENGTHS: Final = {  # of values that tell theirs: the bytes of the length, and those between it and the content
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
_TEXTS: Final = frozenset({0xD9, 0xDA, 0xDB})
_FLOATS: Final = frozenset({0xCA, 0xCB})  # may be no number
_NOT_JSON: Final = (
    frozenset({0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8}) | _FLOATS
)  # or may not be
_COUNTS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # the bytes of the count, and values in one
_SIZES: Final = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3,
    0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip


class TooMuch(ValueError):
    """More values, or deeper nesting, than any message has."""


def check_json(data: bytes) -> None:
    """Raises `TooMuch` for more values than `MOST_VALUES`."""
    if _marks(data) > MOST_VALUES and _marks(_JSON_TEXT.sub(b"", data)) > MOST_VALUES:
        raise TooMuch(f"it has more than {MOST_VALUES} values: send fewer groups at once")


class Heads(NamedTuple):
    """The number of a message's values, and whether JSON could hold each of them."""

    values: int
    plain: bool


def check_msgpack(data: bytes) -> Heads:
    """Raises `TooMuch`; what is no MessagePack is left to the decoder."""
    at, seen, left, size, plain, maps = 0, 1, [1], len(data), True, [False]
    while left and at < size:
        head = data[at]
        if maps[-1] and not left[-1] & 1:  # a key
            plain = plain and (0xA0 <= head <= 0xBF or head in _TEXTS)
        elif head in _NOT_JSON:
            plain = plain and head in _FLOATS and _finite(data, at)
        left[-1] -= 1
        at += 1
        count, at = _container(data, head, at)
        if count is None:
            at = _after(data, head, at)
        else:
            seen += count
            if seen > MOST_VALUES:
                raise TooMuch(f"it has more than {MOST_VALUES} values: send fewer groups at once")
            if len(left) > DEEPEST:
                raise TooMuch(f"it is nested deeper than {DEEPEST} levels")
            left.append(count)
            maps.append(0x80 <= head <= 0x8F or head >= 0xDE)
        while left and not left[-1]:
            left.pop()
            maps.pop()
    return Heads(seen, plain)


def _finite(data: bytes, at: int) -> bool:
    """False for what is no number, or endless: the exponent has all bits."""
    first, second = data[at + 1 : at + 2], data[at + 2 : at + 3]
    bits = 0x80 if data[at] == 0xCA else 0xF0
    return not (first and second and first[0] & 0x7F == 0x7F and second[0] & bits == bits)


def _container(data: bytes, head: int, at: int) -> tuple[int | None, int]:
    """The number of values that an array or a map holds, and where they begin; None for what holds none."""
    if 0x80 <= head <= 0x9F:
        return (head & 15) * (2 if head < 0x90 else 1), at
    if (wide := _COUNTS.get(head)) is None:
        return None, at
    width, each = wide
    return int.from_bytes(data[at : at + width]) * each, at + width


def _after(data: bytes, head: int, at: int) -> int:
    if 0xA0 <= head <= 0xBF:
        return at + (head & 31)
    if (told := _LENGTHS.get(head)) is None:
        return at + _SIZES.get(head, 0)
    width, more = told
    return at + width + more + int.from_bytes(data[at : at + width])


def _marks(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")
