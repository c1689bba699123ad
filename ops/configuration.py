# ruff: noqa: INP001  (a program, not a module)
"""Writes docs/reference/configuration.md from the declarations of flags and variables.

python -m ops.configuration            # prints the page
python -m ops.configuration FILE       # writes it
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import api.config
import slurm.__main__
import workers.__main__
from prorl_mq.cli import arguments
from prorl_mq.process.environment import VARIABLES
from prorl_mq.process.settings import Setting
from workers.node import keeper

SWITCH: Final = "switch"
METAVARS: Final = {"DIR": "path", "FILE": "path"}
UNITS: Final = {"ms": "ms", "s": "s", "bytes": "bytes"}
TYPES: Final = {"str": "text", "int": "integer", "float": "number", "Path": "path"}
HEAD: Final = """# Configuration

Every flag and environment variable of the programs. A flag wins over its variable, the variable over the default.
Passwords are variables only: a command line can be read by everybody on the machine. This page is made from the
declarations by `make docs-reference`.
"""


class Row(NamedTuple):
    """One line of a table."""

    name: str
    variable: str
    type: str
    default: str
    unit: str
    meaning: str


def programs() -> Mapping[str, Mapping[str, argparse.ArgumentParser]]:
    """Each program's parsers by sub-command; a program without any has one under the empty name."""
    return {
        "prorl-mq": arguments.arguments()[1],
        "prorl-api": {"": api.config.parser({})},
        "prorl-worker": {"": workers.__main__.arguments({})},
        "prorl-keeper": {"": keeper.arguments({})},
        "prorl-slurm": slurm.__main__.arguments()[1],
    }


def page() -> str:
    """The text of the page."""
    parts = [HEAD]
    for program, commands in programs().items():
        parts.append(f"## {program}\n\n{_table(_rows(commands), 'commands')}")
    readers = {_row(each, each): ", ".join(each.programs) for each in VARIABLES}
    parts.append(f"## Variables without a flag\n\n{_table(readers, 'read by')}")
    return "\n".join(parts)


def _rows(commands: Mapping[str, argparse.ArgumentParser]) -> dict[Row, str]:
    """Each different flag with the commands that have it."""
    found: defaultdict[Row, list[str]] = defaultdict(list)
    for command, parser in commands.items():
        for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list them
            flags = [name for name in action.option_strings if name.startswith("--") and name != "--help"]
            if flags:
                found[_row(action, getattr(action, "setting", None))].append(command)
    return {row: ", ".join(names) for row, names in found.items()}


def _row(action: Any, setting: Setting | None) -> Row:
    name = action.name if isinstance(action, Setting) else action.option_strings[0]
    variable = setting.environment_name if setting else None
    return Row(
        name=f"`{name}`",
        variable=f"`{variable}`" if variable and variable != name else "",
        type=_type(action, setting),
        default=_default(action, setting),
        unit=(setting and setting.unit) or UNITS.get(name.rpartition("-")[2], ""),
        meaning=(setting.help if setting else str(action.help or "")).replace("|", "\\|"),
    )


def _default(action: Any, setting: Setting | None) -> str:
    if getattr(action, "required", False):
        return "required"
    default = setting.default if setting else action.default
    shown = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
    return (
        f"`{default}`" if shown and default not in {"", argparse.SUPPRESS} and _type(action, setting) != SWITCH else ""
    )


def _type(action: Any, setting: Setting | None) -> str:
    if getattr(action, "nargs", None) == 0:
        return SWITCH
    if choices := getattr(action, "choices", None):
        return ", ".join(f"`{choice}`" for choice in choices)
    kind = getattr(action.type, "__name__", "str")
    if kind == "str" and setting and setting.metavar:
        return METAVARS.get(setting.metavar, setting.metavar)
    return TYPES.get(kind, kind)


def _table(rows: Mapping[Row, str], last: str = "") -> str:
    """Without the columns that hold nothing."""
    lines = [[*Row._fields, last], *([*row, readers] for row, readers in rows.items())]
    used = [place for place in range(len(lines[0])) if any(line[place] for line in lines[1:])]
    head, *body = [[line[place] for place in used] for line in lines]
    return "\n".join(map(_line, ([cell.capitalize() for cell in head], ["---"] * len(used), *body))) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page())
    else:
        print(page(), end="")
