r"""Numbers and quantities as answers write them: `1.5 \times 10^{3}`, `5!`, `3/4`, `5 mW`, `9.8 m s^{-2}`.

Values are exact fractions; a unit is a factor to the SI's base units and their exponents. Prefixes and symbols are read
with their case: a milliwatt is no megawatt.
"""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple

Dimensions = frozenset[tuple[str, int]]  # base unit and exponent
_PREFIXES: Final = {
    "": 0, "f": -15, "p": -12, "n": -9, "u": -6, "µ": -6, "μ": -6, "m": -3, "c": -2, "d": -1, "h": 2, "k": 3, "M": 6,
    "G": 9, "T": 12, "P": 15,
}  # fmt: skip
_LONG_PREFIXES: Final = {
    "": 0, "pico": -12, "nano": -9, "micro": -6, "milli": -3, "centi": -2, "deci": -1, "kilo": 3, "mega": 6,
    "giga": 9,
    "tera": 12,
}  # fmt: skip
_BASE: Final = {  # symbol: factor, base units
    "m": "1 m", "g": "1/1000 kg", "s": "1 s", "A": "1 A", "K": "1 K", "mol": "1 mol", "cd": "1 cd", "Hz": "1 s-1",
    "N": "1 kg m s-2", "Pa": "1 kg m-1 s-2", "J": "1 kg m2 s-2", "W": "1 kg m2 s-3", "C": "1 A s",
    "V": "1 kg m2 s-3 A-1",
    "F": "1 kg-1 m-2 s4 A2", "Ω": "1 kg m2 s-3 A-2", "S": "1 kg-1 m-2 s3 A2", "Wb": "1 kg m2 s-2 A-1",
    "T": "1 kg s-2 A-1",
    "H": "1 kg m2 s-2 A-2", "Bq": "1 s-1", "Gy": "1 m2 s-2", "Sv": "1 m2 s-2", "L": "1/1000 m3", "l": "1/1000 m3",
    "eV": "1.602176634e-19 kg m2 s-2", "cal": "4.184 kg m2 s-2", "bar": "100000 kg m-1 s-2", "M": "1000 mol m-3",
    "rad": "1", "sr": "1",
}  # fmt: skip
_PLAIN: Final = {  # these take no prefix
    "%": "1/100", "min": "60 s", "h": "3600 s", "hr": "3600 s", "hour": "3600 s", "day": "86400 s",
    "year": "31557600 s",
    "atm": "101325 kg m-1 s-2", "Å": "1e-10 m", "°": "1 deg", "°C": "1 degC", "°F": "1 degF", "dozen": "12",
    "inch": "0.0254 m", "ft": "0.3048 m", "mile": "1609.344 m", "lb": "0.45359237 kg", "t": "1000 kg",
    "tonne": "1000 kg",
}  # fmt: skip
_WORDS: Final = {
    "metre": "m", "meter": "m", "gram": "g", "second": "s", "sec": "s", "ampere": "A", "amp": "A", "kelvin": "K",
    "mole": "mol", "candela": "cd", "hertz": "Hz", "newton": "N", "pascal": "Pa", "joule": "J", "watt": "W",
    "coulomb": "C", "volt": "V", "farad": "F", "ohm": "Ω", "siemens": "S", "weber": "Wb", "tesla": "T", "henry": "H",
    "litre": "L", "liter": "L", "calorie": "cal", "minute": "min", "radian": "rad", "percent": "%", "degree": "°",
    "electronvolt": "eV", "becquerel": "Bq", "atmosphere": "atm", "angstrom": "Å",
}  # fmt: skip
MAX_CHARS: Final = 1000
AFFINE: Final = frozenset({"degC", "degF"})
_NUMBER = r"[+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
_POWER = r"10 ?\^ ?\{{? ?(?P<{}>[+-]?\d{{1,3}}) ?\}}?"
_VALUE = re.compile(
    rf"(?P<sign>[+-]? ?)(?:{_POWER.format('alone')}"
    rf"|(?P<n>{_NUMBER})(?: ?(?:\\times|\\cdot|\*) ?{_POWER.format('times')})?"
    rf"|\\[dt]?frac ?\{{(?P<over>{_NUMBER})\}} ?\{{(?P<under>{_NUMBER})\}})"
    rf"(?:(?P<not>!)| ?\^ ?\{{?(?P<to>\d{{1,2}})\}}?| ?/ ?(?P<by>\d+(?:\.\d+)?)(?![\d.]*[A-Za-z]))?"
)
_FACTOR = re.compile(r"([A-Za-zµμΩ°Å%]+)(?: ?\^ ?\{? ?([+-]?\d) ?\}?|([+-]?\d)(?!\d))?")
_LATEX: Final = {
    r"\mu": "µ", r"\Omega": "Ω", r"\circ": "°", r"\degree": "°", r"\%": "%", r"\AA": "Å", r"\cdot": " ", r"\times": " ",
    "·": " ", "*": " ", "⋅": " ",
}  # fmt: skip


class Unit(NamedTuple):
    """`factor` leads to base units."""

    factor: Fraction
    dimensions: Dimensions


class Quantity(NamedTuple):
    """A number as it is written, and its unit if there is one. `whole`: it is written without point or power."""

    value: Fraction
    unit: Unit | None
    whole: bool

    @property
    def in_base_units(self) -> Fraction:
        return self.value * (self.unit.factor if self.unit else 1)

    @property
    def dimensions(self) -> Dimensions:
        return self.unit.dimensions if self.unit else frozenset()


def quantity(text: str) -> Quantity | None:
    """A number with or without unit and nothing else; None for every other text."""
    found = _VALUE.match(text) if len(text) <= MAX_CHARS else None
    value = _value(found) if found else None
    if found is None or value is None:
        return None
    rest = text[found.end() :].strip()
    measured = unit(rest) if rest else None
    if rest and measured is None:
        return None
    return Quantity(value, measured, re.fullmatch(r"[+-]?[\d,]+", found.group().strip()) is not None)


def unit(text: str) -> Unit | None:
    """`m/s^2`, `kg m`, `metres per second`; None for what is no unit of the table."""
    for written, sign in _LATEX.items():
        text = text.replace(written, sign)
    text = re.sub(r"\^ ?\{? ?° ?\}?", "°", re.sub(r"[()]", " ", text)).replace(" per ", "/")
    text = re.sub(r"° (?=[CF]\b)", "°", re.sub(r"([°%]) ?", r"\1 ", text.replace("µ ", "µ"))).strip()
    factor, dimensions = Fraction(1), dict[str, int]()
    for place, part in enumerate(text.split("/")):
        for word in _words(part):
            found = _FACTOR.fullmatch(word)
            known = _known(found.group(1)) if found else None
            if found is None or known is None:
                return None
            exponent = int(found.group(2) or found.group(3) or 1) * (-1 if place else 1)
            factor *= known.factor**exponent
            for base, power in known.dimensions:
                dimensions[base] = dimensions.get(base, 0) + power * exponent
    return Unit(factor, frozenset((base, power) for base, power in dimensions.items() if power)) if text else None


def _words(part: str) -> list[str]:
    return re.sub(r" ?\^ ?", "^", part).split() or [""]


def _value(found: re.Match[str]) -> Fraction | None:
    exponent = int(found["alone"] or found["times"] or 0)
    if found["over"] is not None:
        if not _read(found["under"]):
            return None
        value = _read(found["over"]) / _read(found["under"])
    else:
        value = _read(found["n"] or "1") * Fraction(10) ** exponent
    if found["not"]:
        if value.denominator != 1 or not 0 <= value <= 100 or exponent:
            return None
        value = Fraction(math.factorial(int(value)))
    if found["to"]:
        value **= int(found["to"])
    if found["by"]:
        if not (divisor := _read(found["by"])):
            return None
        value /= divisor
    return -value if found["sign"].strip() == "-" else value


def _read(text: str) -> Fraction:
    return Fraction(text.replace(",", "").rstrip("."))


def _known(word: str) -> Unit | None:
    """With its prefix, as a symbol or as a word; words may be plural and in any case."""
    if word in _PLAIN:
        return _unit(_PLAIN[word])
    for prefixes, names, said in (
        (_PREFIXES, {name: name for name in _BASE}, word),
        (_LONG_PREFIXES, _WORDS, word.lower()),
        (_LONG_PREFIXES, _WORDS, word.lower().removesuffix("s")),
        ({"": 0}, {name: name for name in _PLAIN if len(name) > 3}, word.lower().removesuffix("s")),
    ):
        if (found := _prefixed(prefixes, names, said)) is not None:
            return found
    return None


def _prefixed(prefixes: Mapping[str, int], names: Mapping[str, str], word: str) -> Unit | None:
    for prefix in sorted(prefixes, key=len):  # the whole word first
        name = names.get(word.removeprefix(prefix)) if word.startswith(prefix) else None
        if name is not None:
            plain = _unit(_BASE.get(name) or _PLAIN[name])
            return Unit(plain.factor * Fraction(10) ** prefixes[prefix], plain.dimensions)
    return None


def _unit(written: str) -> Unit:
    factor, *bases = written.split()
    powers = [re.fullmatch(r"([A-Za-z]+?)(-?\d+)?", base) for base in bases]
    return Unit(Fraction(factor), frozenset((found[1], int(found[2] or 1)) for found in powers if found))
