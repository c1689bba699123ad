"""Plain data of Python as JSON, with types that JSON does not have. The text of this file also runs in sandboxes.

What a solution returns crosses a pipe in this form: no object of its own making, and so no method of its own, gets to
where values are compared. `None`, truth values, small integers, fractions and text stand for themselves; everything
else is a list of a kind and its parts.
"""

from __future__ import annotations  # Python 3.8 may run this

from decimal import Decimal
from fractions import Fraction
from typing import Any

SMALL = 1 << 53  # beyond it, an integer crosses in hexadecimal: Python refuses to write long decimals
DIGITS = 100_000  # of a number that is more than an integer: arithmetic with longer ones takes minutes
PARTS: dict[str, Any] = {"l": list, "t": tuple, "s": set, "f": frozenset}


def pack(value: Any) -> Any:
    """Raises `TypeError` for what is no plain data."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        whole = int(value)
        return whole if -SMALL < whole < SMALL else ["i", hex(whole)]
    for base in (float, str):
        if isinstance(value, base):
            return base(value)
    return _packed(value)


def _packed(value: Any) -> Any:
    if isinstance(value, dict):
        return ["d", [[pack(key), pack(part)] for key, part in value.items()]]
    for kind, collection in PARTS.items():
        if isinstance(value, collection):
            return [kind, [pack(part) for part in value]]
    if isinstance(value, (bytes, bytearray)):
        return ["b", bytes(value).hex()]
    return _rare(value)


def _rare(value: Any) -> Any:
    if isinstance(value, Decimal):
        return ["D", str(Decimal(value))]
    if isinstance(value, Fraction):
        return ["F", [pack(value.numerator), pack(value.denominator)]]
    if isinstance(value, complex):
        return ["c", [complex(value).real, complex(value).imag]]
    if isinstance(value, range):
        return ["r", [value.start, value.stop, value.step]]
    raise TypeError("a solution returns plain data, not " + type(value).__name__)


def unpack(value: Any) -> Any:
    """Restores what was packed. Raises an exception for anything else: it may be what a program made up."""
    if isinstance(value, dict):
        raise TypeError("an object is no plain data in this form")
    if not isinstance(value, list):
        return value
    kind, parts = value
    if kind in PARTS:
        return PARTS[kind](unpack(part) for part in parts)
    if kind == "d":
        return {unpack(key): unpack(part) for key, part in parts}
    if kind == "r":
        return range(*map(_whole, parts))
    return bytes.fromhex(parts) if kind == "b" else number(kind, parts)


def number(kind: str, parts: Any) -> Any:
    """A long integer, `Decimal`, `Fraction` or complex number. Raises an exception for what is none, or too long."""
    if kind == "i":
        return int(parts, 16)
    if kind == "D" and len(parts) <= DIGITS:
        return Decimal(parts)
    if kind == "c":
        real, imaginary = parts
        return complex(float(real), float(imaginary))
    if kind == "F":
        over, under = (_whole(unpack(part)) for part in parts)
        if over.bit_length() + under.bit_length() <= DIGITS:
            return Fraction(over, under)
    raise ValueError("no plain data of kind " + repr(kind)[:20])


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError("an integer was expected")
    return value
