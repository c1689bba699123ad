r"""Preparation of an answer for math-verify: one spelling for numbers, and the texts that it would read wrongly.

math-verify drops what it does not know (words, signs, the left side of an equation): `\text{less than }5` reads 5.
"""

import re
import unicodedata
from typing import Final

from workers.handlers.quantities import Quantity, quantity

_RAISED: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_POWER = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_SIGNS: Final = {
    "−": "-", "–": "-", "‒": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "°": r"^\circ ", "½": "½",
}  # fmt: skip
_UNSEEN = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")
_DRESS = re.compile(r"\\color\s*\{[^{}]*\}|\\(?:underline|textcolor\s*\{[^{}]*\})\s*\{([^{}]*)\}|\\\\\s*$")
_LETTER = re.compile(r"(?<![A-Za-z])\\(?:text|mathrm|mathit)\s*\{\s*([einxyz])\s*\}")  # no unit is called so
_ALIASES: Final = {r"\varnothing": r"\emptyset", r"\mod ": r"\bmod ", r"\text{\$}": r"\$", "per cent": "percent"}
_WIDE = re.compile("[\uff01-\uff5e]")
_SPACE = re.compile(r"(?<!\\)\\(?:[ ,;:]|(?:quad|qquad|thinspace|enspace)(?![A-Za-z]))|~|[\s\u2007\u202f]")
_THOUSANDS = re.compile(r"(?<![\d.,])(?<![\d.,] )\d{1,3}(?: \d{3})+(?! ?\d)")
_MIXED = re.compile(r"(?<![\d.,/^_])(?<!frac)(\d+) (\d+) ?/ ?(\d+)(?!\d)")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,3})(?![\w.])")
_CROSS = re.compile(r"(?<=\d) ?[xX*] ?(?=10 ?\^)")
_VARIABLE_E = re.compile(r"(?<![A-Za-z\\])e(?![A-Za-z])")
_SCALES: Final = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}")
_SCALED = re.compile(rf"(?<=\d) ?(?:{'|'.join(_SCALES)})\b", re.IGNORECASE)
_IN_PERCENT = re.compile(r"(\d[\d.,]*|\.\d+|\\[dt]?frac\{\d+\}\{\d+\}) ?(?:\\?%|percent\b)")
_PERCENT = re.compile(r" ?(?:\\?%|percent\b)")
_CHANGES = re.compile(
    r"\b(?:not|no|least|most|more|less|fewer|than|about|approximately|around|except|maybe|perhaps|neither|below|above"
    r"|under|exceeds?|dozens?|hundred|half|twice|double|negative|minus|false|wrong)\b",
    re.IGNORECASE,
)
_OF_NUMBERS = re.compile(
    r"(?<=\d)[\s}]*(?:\\(?:text|mathrm|mbox)\s*\{)?\s*(squared|cubed|factorial|inverse|reciprocal|halves|thirds?|fourths?"
    r"|fifths?|sixths?|eighths?|tenths?|hundredths?|thousandths?|k|mn|bn|lakhs?|crores?|per ?mille?"
    r"|basis points?)(?![A-Za-z])",
    re.IGNORECASE,
)
_SECOND_NUMBER = re.compile(r"\d\s*\\(?:text|mathrm|mbox)\s*\{[^{}\d]*[A-Za-z]\s+\d")
_LOGIC = re.compile(  # an arrow below a limit is none
    r"(?<!_\{[a-z] )(?<!_\{[a-z])\\(?:to|rightarrow|Rightarrow|implies|iff|mapsto|neg|lnot|lor|vee|exists|forall|ni)"
    r"(?![A-Za-z])|[→⇒∨]"
)
_WORDS = re.compile(r"\\(?:text|mathrm|mbox)\s*\{(?!\s*(?:and|or)\s*\})[^{}]*\}")
_TRAILING = re.compile(r"(?<=\d) ([a-z]{3,20}(?: [a-z]{1,20}){0,3})$")
_RELATION = re.compile(r"\\(?:ne|neq|geq?|leq?|gt|lt|geqslant|leqslant)(?![A-Za-z])|[<>]")
_NAME = re.compile(r"[A-Za-z]")
_OPEN_END = re.compile(r"\\[lc]?dots|\.\.\.|…")
_CHANGE_THE_VALUE: Final = (
    (_OPEN_END, "it has no end"),
    (_LOGIC, "it is a statement, not a value"),
    (_SECOND_NUMBER, "its words say another number"),
)
_BASE = re.compile(r"\d_\{?(\d{1,2})\}?$")
_APART = re.compile(r"\d +\d")
_TWO_ARGUMENTS = re.compile(r"\\(?:[dtc]?frac|[dt]?binom|log ?_) ?\d ?\d")
_COMMAND = re.compile(r"\\[A-Za-z]+")


def spelled(text: str, *, other: str = "") -> str:
    """One spelling of an answer. `other` is what it is compared with: an `e` there is a number, not a power of ten."""
    text = _LETTER.sub(r"\1", _DRESS.sub(r"\1", _UNSEEN.sub("", text)))
    for alias, usual in _ALIASES.items():
        text = text.replace(alias, usual)
    text = _POWER.sub(lambda found: f"^{{{found.group().translate(_RAISED)}}}", text)
    text = _VULGAR.sub(_fraction, text)
    text = _WIDE.sub(lambda found: unicodedata.normalize("NFKC", found.group()), text)
    for sign, written in _SIGNS.items():
        text = text.replace(sign, written)
    text = _SPACE.sub(" ", re.sub(r"(?<=,)\\! ?", "", text.replace("{,}", ",")).replace(r"\!", ""))
    text = _THOUSANDS.sub(lambda found: found.group().replace(" ", ""), text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    if not _VARIABLE_E.search(other):
        text = _SCIENTIFIC.sub(r"\1\\times 10^{\2}", text)
    text = _SCALED.sub(_scale, _CROSS.sub(r"\\times ", _scaled_text(text)))
    return _without_end(text.strip())


def with_words_aside(text: str) -> str:
    r"""`50 dollars` as `50\text{ dollars}`, which math-verify reads."""
    return _TRAILING.sub(r"\\text{ \1}", text)


def without_percent(answer: str, accepted: str, *, asked: bool) -> list[tuple[str, str]]:
    r"""Pairs to check. `28` and `0.28` are both `28\%`; `28\%` is `28` only where the question `asked` for percent."""
    signs = bool(_PERCENT.search(answer)), bool(_PERCENT.search(accepted))
    match signs:
        case (False, True):
            return [(answer, _PERCENT.sub("", accepted)), (answer, _IN_PERCENT.sub(_hundredth, accepted))]
        case (True, False):
            fraction = (_IN_PERCENT.sub(_hundredth, answer), accepted)
            return [(_PERCENT.sub("", answer), accepted), fraction] if asked else [fraction]
        case _:
            return [(answer, accepted)]


def misread(answer: str, accepted: str) -> str | None:
    """Why an answer, spelled, must not be read as math-verify would, if so."""
    if _APART.search(_TWO_ARGUMENTS.sub("", _WORDS.sub(" ", answer))) and not _APART.search(accepted):
        return "two numbers stand side by side"
    if _RELATION.search(answer) and not _RELATION.search(accepted) and not _NAME.search(_COMMAND.sub(" ", answer)):
        return "it says what a number is not, or how large it may be"
    if (base := _BASE.findall(answer)) != _BASE.findall(accepted) and base not in ([], ["10"]):
        return "its digits are of another base"
    for pattern, reason in _CHANGE_THE_VALUE:
        if pattern.search(answer) and not pattern.search(accepted):
            return reason
    changing = _changing(answer) - _changing(accepted)
    return f"it says {min(changing)!r}" if changing else None


def same(answer: str, accepted: str) -> bool:
    """True if both are one text, but for spaces that separate nothing."""
    return _tight(answer) == _tight(accepted)


def _tight(text: str) -> str:
    return re.sub(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])", "", text.strip())


def _changing(text: str) -> set[str]:
    """Words that change what a number beside them says."""
    words = [*_CHANGES.findall(_COMMAND.sub(" ", text)), *_OF_NUMBERS.findall(text)]
    return {word.lower() for word in words}


def _fraction(found: re.Match[str]) -> str:
    over, _, under = unicodedata.normalize("NFKC", found.group()).partition("\u2044")
    return rf"\frac{{{over}}}{{{under}}}"


def _hundredth(found: re.Match[str]) -> str:
    return rf"\frac{{{found.group(1).replace(',', '')}}}{{100}}"


def measured(text: str) -> Quantity | None:
    """A number with a unit, if a spelled answer is that and nothing else."""
    found = quantity(_TEXT.sub(r"\1", text))
    return found if found and found.unit else None


def _scaled_text(text: str) -> str:
    r"""`5\text{ million}` without the box of its word."""
    return _TEXT.sub(lambda found: f" {found.group(1).strip()}" if _is_scale(found.group(1)) else found.group(), text)


def _is_scale(word: str) -> bool:
    return word.strip().lower() in {*_SCALES, "percent"}


def _scale(found: re.Match[str]) -> str:
    return rf"\times 10^{{{_SCALES[found.group().strip().lower()]}}}"


def _without_end(text: str) -> str:
    """Without the full stop or comma of the sentence that an answer ended."""
    return text if text.endswith("..") else re.sub(r"(?<=[\w)}\]%$]) ?[.,;]$", "", text)
