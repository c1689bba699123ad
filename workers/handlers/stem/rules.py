"""What can be decided of a short answer without asking anybody."""

import re
import unicodedata
from collections.abc import Sequence

_CHOICE = re.compile(r"[\s(\[]*(?:option|choice|answer)?[\s(\[]*([a-j])[\s)\].:]*", re.IGNORECASE)
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?")


def decided(answer: str, accepted: Sequence[str]) -> bool | None:
    """Right, wrong, or None: only a reader can say. A letter of a multiple choice and a whole number are exact."""
    if plain(answer) in map(plain, accepted):
        return True
    if all(_CHOICE.fullmatch(each.strip()) for each in accepted):
        return _letter(answer) in {_letter(each) for each in accepted}
    if all(_whole(each) for each in accepted) and _NUMBER.fullmatch(plain(answer)):
        return float(plain(answer).replace(",", "")) in {float(plain(each).replace(",", "")) for each in accepted}
    return None


def plain(text: str) -> str:
    """Without what makes no difference: case, spaces, marks at the ends, LaTeX's words for text."""
    text = _WRAPPED.sub(r"\1", unicodedata.normalize("NFKC", text))
    text = text.replace("$", "").replace("\\,", " ").replace("\\ ", " ").casefold()
    return " ".join(text.split()).strip(" .;:!\"'")


def _letter(text: str) -> str:
    """The letter of a choice; `B) because` names none, for it might name another further on."""
    found = _CHOICE.fullmatch(text.strip())
    return found.group(1).casefold() if found else ""


def _whole(text: str) -> bool:
    return bool(_NUMBER.fullmatch(plain(text))) and "." not in text and "e" not in text.casefold()
