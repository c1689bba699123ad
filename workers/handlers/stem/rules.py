r"""Decisions on a short answer without asking anybody: options, numbers, quantities, formulas, equal words.

Everything has a type, and what matters depends on it: the case of a unit or a formula does, that of a word does not;
a point before a digit does, one behind a word does not.
"""

import re
from collections.abc import Sequence
from typing import Final

from workers.handlers.math.reading import spelled
from workers.handlers.quantities import AFFINE, Quantity, quantity, unit

MAX_UNIT_CHARS: Final = 3  # of a unit that stands alone; longer ones are words
NEAR: Final = 0.05  # numbers that differ by less may be one, rounded: a reader decides
_WRAPPED = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|up)?|math(?:rm|bf|it|sf|tt)|underline|rm|bf|mbox|ce|operatorname)"
    r"\s*\{((?:[^{}]|\{[^{}]*\})*)\}|\\(?:bf|rm|it|sf|tt)(?![A-Za-z])"
)
_LOWERED: Final = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_LEAD = re.compile(r"(?:the )?(?:correct )?(?:options?|choices?|answers?)(?: is)? ?:? ?", re.IGNORECASE)
_OPTION = re.compile(r"[(\[]*([A-Ja-j])[)\].:]*")
_OPTIONS = re.compile(rf"{_OPTION.pattern}(?:(?:[,;& ]|and)+{_OPTION.pattern})*", re.IGNORECASE)
_LETTER = re.compile(r"(?<![A-Za-z])[A-Ja-j](?![A-Za-z])")
_ELEMENTS: Final = frozenset(
    re.findall(
        r"\w+",
        "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr "
        "Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir "
        "Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr ",
    )
)
_ELEMENT = re.compile(r"[A-Z][a-z]?")
_FORMULA_MARKS: Final = frozenset("0123456789_{}()[]^+-")
_WORDS: Final = frozenset({"yes", "no", "i", "in", "as", "at", "he", "be", "os"})  # words before they are symbols


def decided(answer: str, accepted: Sequence[str]) -> bool | None:
    """Right, wrong, or None: only a reader can say."""
    verdicts = [_decided(answer, each) for each in accepted]
    if True in verdicts:
        return True
    return None if None in verdicts else False


def exact(accepted: Sequence[str]) -> bool:
    """True if rules decide every answer to this: options of a multiple choice."""
    return bool(accepted) and all(_options(bare(each)) for each in accepted)


def bare(text: str) -> str:
    """Without what makes no difference to any type: LaTeX's words for text, outer dollars, spaces, marks of prose."""
    text = text.strip()
    while (unwrapped := _WRAPPED.sub(r"\1", text)) != text:
        text = unwrapped
    text = spelled(text.translate(_LOWERED).replace("$", "").replace("**", "")).strip(" \"'`")
    while (unbraced := re.sub(r"^\{(.*)\}$", r"\1", text)) != text:
        text = unbraced.strip()
    return " ".join(re.sub(r"(?<=[^\W\d_]{2})[.;:]$", "", text).split())


def _decided(answer: str, right: str) -> bool | None:
    said, wanted = bare(answer), bare(right)
    if options := _options(wanted):
        return _options(said) == options
    if said == wanted:
        return True
    known, given = quantity(wanted), quantity(said)
    if known and given:
        return _equal(given, known)
    if _is_symbol(wanted):
        return _folded(said) == _folded(wanted) if _is_symbol(said) else None
    return True if not known and _same_words(said, wanted) else None


def _options(text: str) -> frozenset[str]:
    """The letters of a choice; `B) because` names none, for it might name another further on."""
    text = _LEAD.sub("", text, count=1) if _LEAD.match(text) else text
    if not _OPTIONS.fullmatch(text.strip()):
        return frozenset()
    return frozenset(letter.upper() for letter in _LETTER.findall(text))


def _equal(given: Quantity, known: Quantity) -> bool | None:
    if given.dimensions != known.dimensions:
        loose = given.unit is None or known.unit is None  # a reader knows whether the unit was asked for
        affine = AFFINE & {base for base, _ in given.dimensions | known.dimensions}
        return None if loose or affine else False
    if given.in_base_units == known.in_base_units:
        return True
    if given.unit != known.unit and given.value == known.value:  # `5` and `5%`: the question may name the unit
        return None if given.unit is None or known.unit is None else False
    if known.whole and known.unit is None and given.unit is None:
        return False
    apart = abs(given.in_base_units - known.in_base_units)
    return None if apart <= NEAR * abs(known.in_base_units) else False


def _same_words(said: str, wanted: str) -> bool:
    """True if they differ in the case of whole words at most: `pH` is no `Ph`, and `K` no `k`."""
    if said.casefold() != wanted.casefold():
        return False
    pairs = zip(said.split(), wanted.split(), strict=True)
    return all(one == other or (_is_word(one) and _is_word(other)) for one, other in pairs)


def _is_word(text: str) -> bool:
    return len(text) > 1 and text.replace("-", "").replace("'", "").isalpha() and text in _cases(text)


def _cases(text: str) -> tuple[str, ...]:
    return text.lower(), text.upper(), text.capitalize()


def _folded(formula: str) -> str:
    """`H_{2}O` as `H2O`."""
    return re.sub(r"[_{} ]", "", formula)


def _is_symbol(text: str) -> bool:
    """A chemical formula or a unit, where case says which one."""
    if text.casefold() in _WORDS:
        return False
    if len(text) <= MAX_UNIT_CHARS and unit(text) is not None:
        return True
    symbols = _ELEMENT.findall(text)
    return bool(symbols) and _ELEMENTS.issuperset(symbols) and _FORMULA_MARKS.issuperset(_ELEMENT.sub("", text))
