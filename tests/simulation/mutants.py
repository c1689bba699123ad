"""Scripts with one check taken out: each `if … then` or `elseif … then` that refuses something is never true.

A refusal is a branch that answers something else than a grant. They are found in the Lua text, so that a new script's
checks are in the table by themselves.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from unittest import mock

from prorl_mq.store import scripts
from prorl_mq.store.scripts import Script
from tests.simulation.options import STORM, derive
from tests.simulation.replay import play
from tests.simulation.server import Server

_CONDITION = re.compile(r"^(\s*)(if|elseif) (.+) then\b(.*)$")
_REFUSAL = re.compile(
    r"'(stale|gone|lost|already|held|moved|taken|early|expired|withdrawn|conflict|ended|alive|pending|in use|open)'"
    r"|return -1|= -1|return nil|return holder"
)


class Mutant(NamedTuple):
    """One check of one script, by the line of its assembled text."""

    script: str
    line: int
    condition: str
    text: str  # of the script without the check

    def __str__(self) -> str:
        return f"{self.script}:{self.line} {self.condition}"


def mutants(name: str) -> list[Mutant]:
    """Every single removal of a check of one script."""
    lines = scripts.script(name).text.splitlines()
    found, unused = [], _unused(lines)
    for at, line in enumerate(lines):
        match = _CONDITION.match(line)
        if match is None or at in unused or not _refuses(lines, at, match[4]):
            continue
        for part in _parts(match[3]):
            kept = _without(match[3], part)
            changed = [*lines[:at], f"{match[1]}{match[2]} {kept} then{match[4]}", *lines[at + 1 :]]
            found.append(Mutant(name, at + 1, part, "\n".join(changed) + "\n"))
    return found


def _unused(lines: list[str]) -> range:
    """The lines of the fence in a script that includes it for `give_back` alone."""
    if any("= commit(" in line for line in lines) or "local committed = {}" not in lines:
        return range(0)
    last = next(at for at, line in enumerate(lines) if "local function delete_committed" in line)
    return range(lines.index("local committed = {}"), last)


def _refuses(lines: list[str], at: int, rest: str) -> bool:
    return bool(_REFUSAL.search(rest or lines[at + 1]))


def _parts(condition: str) -> list[str]:
    """Alternatives joined by `or` at the outer level: each is a check of its own."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(condition):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and condition.startswith(" or ", at):
            parts.append(condition[start:at])
            start = at + 4
    return [*parts, condition[start:]]


def _without(condition: str, part: str) -> str:
    """The part is evaluated, since it may do something, and never true."""
    return condition.replace(part, f"(({part}) and false)", 1)


@contextlib.contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Every process speaks the changed script."""
    original = scripts.script

    def changed(name: str) -> Script:
        return made if name == mutant.script else original(name)

    made = Script(mutant.script, mutant.text)
    with contextlib.ExitStack() as stack:
        for module in _users():
            stack.enter_context(mock.patch.object(module, "script", changed))
        yield


def _users() -> list[object]:
    """Modules that import the table of scripts by name."""
    from prorl_mq.store import core, streams
    from prorl_mq.store.server import beat

    return [scripts, core, streams, beat]


GRANTS = frozenset({
    "claimed", "held", "advanced", "finished", "delayed", "released", "confirmed", "requeued", "ended", "promoted",
    "stopping", "published", "parked", "refilled", "stored", "acked", "forgotten", "retired", "halted",
})  # fmt: skip


def worth(mutant: Mutant, counts: Mapping[str, int]) -> bool:
    """Whether a history met a refusal of the script: without one the history with the mutant is the same."""
    words = [what.partition(": ")[2] for what in counts if what.startswith(f"{mutant.script}: ")]
    refused = [word for word in words if word not in GRANTS and not word.isdigit()]
    return bool(refused) or (mutant.script == "reap" and "reap: held" in counts)


def hunt(server: Server, left: list[Mutant], seeds: Iterable[int]) -> Iterator[tuple[Mutant, int, str]]:
    """Plays seeds until each mutant is found: mutant, seed, finding. What is not found stays in `left`."""
    for seed in seeds:
        options = derive(seed, shares=STORM)
        counts = play(server, options).counts
        for mutant in [each for each in left if worth(each, counts)]:
            with applied(mutant):
                findings = play(server, options).findings
            if findings:
                left.remove(mutant)
                yield mutant, seed, str(findings[0])
