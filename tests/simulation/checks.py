"""The checks of the scripts, found in their Lua text: each part of a condition that refuses something.

A check is one place in one file of `prorl_mq/store/lua`; one in a shared part is a check of every script that includes
it. Found by themselves, so that a new script's checks are in the table without anybody writing them down:

* `if A or B then` before a refusal: A and B are checks, and without one of them it is never true;
* `if A and B then … else` before a refusal, or around the taking of something (`call('ZREM', …) == 1`): without one of
  them it is always true;
* the parts of a local value that such a condition names (`local mine = A and B`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

from prorl_mq.store import scripts

_INCLUDE: Final = "--@include "
_CONDITION = re.compile(r"^(\s*)(if|elseif) (.+) then\b(.*)$")
_LOCAL = re.compile(r"^(\s*)local (\w+) = (.+)$")
_WORDS: Final = (
    "stale|gone|lost|already|held|moved|taken|early|expired|withdrawn|conflict|ended|alive|pending|open|kept|changed|none"
    "|unknown|draining|in use|not held"
)
_REFUSAL = re.compile(
    rf"(return|status =|reply\[place\] =) .*'({_WORDS})'"
    r"|return (-1|nil|holder|reply)\b|= -1|error_reply|= more\b"
)
_TAKES = re.compile(r"call\('(ZREM|HDEL|XDEL|XACK)'.*\) == 1|^order$")
_COMPARES = re.compile(r"[~=]=|[<>]")
SHARED: Final = sorted(
    file.name.removesuffix(".lua")
    for file in resources.files("prorl_mq.store").joinpath("lua", "shared").iterdir()
    if file.name.endswith(".lua")
)


class Check(NamedTuple):
    """One part of one line of one file. `refuses`: where the part is true; else where it is false."""

    file: str
    line: int
    part: str
    refuses: bool

    @property
    def name(self) -> str:
        """What stays when lines are added above."""
        return f"{self.file}: {self.part}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.part}"


def checks() -> list[Check]:
    """Every check of every script, each shared part's once."""
    return [check for file in (*SHARED, *scripts.names()) for check in checks_of(file)]


def checks_of(file: str) -> list[Check]:
    """The checks of one file."""
    lines = _source(file)
    found = [check for at, line in enumerate(lines) for check in _of_line(file, lines, at, line)]
    named = {word for check in found for word in re.findall(r"\w+", check.part)}
    for at, line in enumerate(lines):
        match = _LOCAL.match(line)
        if match and match[2] in named:
            refuses = any(each.part == match[2] and each.refuses for each in found)
            parts = _parts(match[3], " and ")
            if len(parts) > 1 and all(_COMPARES.search(part) for part in parts):
                found += [Check(file, at + 1, part, refuses) for part in parts]
    return found


def without(check: Check) -> str:
    """The part as it is when the check is taken out: it is evaluated, since it may do something, and never decides."""
    return f"(({check.part}) {'and false' if check.refuses else 'or true'})"


def assembled(name: str, wanted: Iterable[Check], wrap: Callable[[Check], str]) -> str:
    """A script's text with some checks in other words."""
    text = []
    for line in _lines(name, wanted, wrap):
        if line.startswith(_INCLUDE):
            text += _lines(line.removeprefix(_INCLUDE).strip(), wanted, wrap)
        else:
            text.append(line)
    return "\n".join(text) + "\n"


@cache
def users(file: str) -> list[str]:
    """The scripts that have the text of a file: itself, or those that include it."""
    if file not in SHARED:
        return [file]
    return [name for name in scripts.names() if f"{_INCLUDE}{file}" in _source(name)]


def _lines(file: str, wanted: Iterable[Check], wrap: Callable[[Check], str]) -> list[str]:
    lines = list(_source(file))
    for check in wanted:
        if check.file == file:
            before, after = lines[check.line - 1].split(check.part, 1)
            lines[check.line - 1] = before + wrap(check) + after
    return lines


@cache
def _source(file: str) -> tuple[str, ...]:
    folder = resources.files("prorl_mq.store").joinpath("lua")
    folder = folder.joinpath("shared") if file in SHARED else folder
    return tuple(folder.joinpath(f"{file}.lua").read_text().splitlines())


def _of_line(file: str, lines: Sequence[str], at: int, line: str) -> Iterator[Check]:
    match = _CONDITION.match(line)
    if match is None or at + 1 >= len(lines):
        return
    refuses = bool(_REFUSAL.search(match[4] or lines[at + 1]))
    if refuses:
        yield from (Check(file, at + 1, part, True) for part in _parts(match[3], " or "))
    elif match[2] == "if" and (_TAKES.search(match[3]) or _otherwise_refuses(lines, at, match[1])):
        yield from (Check(file, at + 1, part, False) for part in _parts(match[3], " and "))


def _otherwise_refuses(lines: Sequence[str], at: int, indent: str) -> bool:
    """The branch's `else` refuses."""
    for place in range(at + 1, len(lines) - 1):
        if lines[place].startswith(f"{indent}else") and not lines[place].startswith(f"{indent}elseif"):
            return bool(_REFUSAL.search(lines[place + 1]))
        if lines[place].startswith((f"{indent}end", f"{indent}elseif")):
            return False
    return False


def _parts(condition: str, joint: str) -> list[str]:
    """What is joined at the outer level."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(condition):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and condition.startswith(joint, at):
            parts.append(condition[start:at])
            start = at + len(joint)
    return [*parts, condition[start:]]
