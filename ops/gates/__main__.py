"""Gates of `make check`: counts of what the code should not have, each of which may only fall.

    python -m ops.gates              # compares the counts with ops/gates/allowed.toml
    python -m ops.gates --tighten    # writes lower counts, and where the rest stands, into that file
    python -m ops.gates --report     # every count, and what is counted without a gate
    mypy -p tests | python -m ops.gates --types    # the gate of mypy's findings in tests, read from standard input

More than allowed fails and names the new offences with the remedy. Fewer fails too, so that no count can grow back.
"""

import argparse
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ops.gates import code, prose
from ops.gates.tree import Offence, Tree

ROOT: Final = Path(__file__).parent.parent.parent
ALLOWED: Final = Path(__file__).parent / "allowed.toml"
SHOWN: Final = 20  # offences in one message
MYPY: Final = re.compile(r"^([^:\s]+):(\d+): error: (.*)$", re.MULTILINE)
MYPY_ENDED: Final = re.compile(r"^(Found \d+ errors? in|Success:)", re.MULTILINE)


class Gate(NamedTuple):
    """`remedy`: what to do about an offence."""

    find: Callable[[Tree], Iterable[Offence]]
    remedy: str


GATES: Final = {
    "long_modules": Gate(code.long_modules, "split the module by duty: 350 lines at most"),
    "long_functions": Gate(code.long_functions, "split the function: 60 lines at most"),
    "full_folders": Gate(code.full_folders, "group or merge modules: 20 in a folder at most"),
    "doubled_classes": Gate(code.doubled_classes, "give one of the classes a name of its own"),
    "redis_outside_store": Gate(code.redis_outside_store, "make it a read or a verb of prorl_mq/store"),
    "testing_in_production": Gate(code.testing_in_production, "move what is used out of prorl_mq/testing"),
    "dead_names": Gate(prose.dead_names, "correct the name or the path, or leave it out"),
    "phrases": Gate(prose.phrases, "use the plain word"),
    "openings": Gate(prose.openings, "open the docstring with the noun or the verb"),
    "undeclared_flags": Gate(code.undeclared_flags, "declare a `prorl_mq.settings.Setting` in the program's list"),
    "settings": Gate(code.settings, "do without the setting, or take out another one"),
}
TYPES: Final = "types_of_tests"
TYPES_REMEDY: Final = "correct the types"


class Bar(NamedTuple):
    """What one gate allows: how many, and how many of them in which file."""

    allowed: int
    where: dict[str, int]


def read(path: Path) -> dict[str, Bar]:
    """By gate. A gate that the file does not name allows nothing."""
    table: dict[str, Any] = tomllib.loads(path.read_text()) if path.is_file() else {}
    return {name: Bar(row["allowed"], row.get("where", {})) for name, row in table.items()}


def written(bars: dict[str, Bar]) -> str:
    """The text of the file. `where` only serves to name new offences first."""
    lines = [
        "# Written by `python -m ops.gates --tighten`. `allowed` may only fall; `where` tells new offences from old."
    ]
    for name, bar in sorted(bars.items()):
        lines += ["", f"[{name}]", f"allowed = {bar.allowed}"]
        if bar.where:
            lines += [f"[{name}.where]", *(f'"{file}" = {count}' for file, count in sorted(bar.where.items()))]
    return "\n".join(lines) + "\n"


def fault(name: str, found: Sequence[Offence], bar: Bar, remedy: str) -> str | None:
    """What to tell of one gate; None if its count is the allowed one."""
    if len(found) == bar.allowed:
        return None
    told = f"{name}: {len(found)}, and {bar.allowed} are allowed"
    if len(found) < bar.allowed:
        return f"{told}: lower the number to {len(found)} with `python -m ops.gates --tighten`"
    counts = Counter(each.file for each in found)
    new = [each for each in found if counts[each.file] > bar.where.get(each.file, 0)] or list(found)
    lines = [f"{told}: {remedy}. New ones are in these files:"]
    lines += [f"  {each.file}:{each.line}: {each.what}" for each in new[:SHOWN]]
    if len(new) > SHOWN:
        lines.append(f"  and {len(new) - SHOWN} more")
    return "\n".join(lines)


def tightened(bar: Bar | None, found: Sequence[Offence]) -> Bar:
    """Never above what was allowed; a gate that is new starts at what it finds."""
    count = len(found) if bar is None else min(bar.allowed, len(found))
    return Bar(count, dict(Counter(each.file for each in found)))


def mypy_findings(output: str) -> list[Offence]:
    return [Offence(file, int(line), what) for file, line, what in MYPY.findall(output)]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 if a gate is shut."""
    parser = argparse.ArgumentParser(prog="python -m ops.gates", description="Counts that may only fall.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (this one)")
    parser.add_argument("--allowed", type=Path, default=ALLOWED, help="the file of allowed counts")
    parser.add_argument("--tighten", action="store_true", help="write lower counts into it")
    parser.add_argument("--report", action="store_true", help="print every count")
    parser.add_argument("--types", action="store_true", help="the gate of mypy's output, which is standard input")
    given = parser.parse_args(argv)
    if given.types:
        output = sys.stdin.read()
        if not MYPY_ENDED.search(output):
            sys.exit(f"mypy did not come to its end:\n{output}")
        found = {TYPES: mypy_findings(output)}
    else:
        tree = Tree(given.root)
        found = {name: list(gate.find(tree)) for name, gate in GATES.items()}
        if given.report:
            print("\n".join(f"{len(each):5} {name}" for name, each in found.items()))
            print(f"{len(code.single_importers(tree)):5} modules with a single importer, without a gate")
            return 0
    bars = read(given.allowed)
    if given.tighten:
        given.allowed.write_text(
            written({**bars, **{name: tightened(bars.get(name), each) for name, each in found.items()}})
        )
        bars = read(given.allowed)
    remedies = {name: gate.remedy for name, gate in GATES.items()} | {TYPES: TYPES_REMEDY}
    faults = [fault(name, each, bars.get(name, Bar(0, {})), remedies[name]) for name, each in found.items()]
    print("\n".join(each for each in faults if each) or f"{len(found)} gates kept")
    return 1 if any(faults) else 0


if __name__ == "__main__":
    sys.exit(main())
