# ruff: noqa: INP001  (a program, not a module)
"""Writes docs/reference/configuration.md from the declarations of flags and variables.

python -m ops.configuration            # prints the page
python -m ops.configuration FILE       # writes it
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import api.config
import prorl_mq.dashboard.settings
import sandbox.__main__
import slurm.__main__
import slurm.api_task
import slurm.backend_task
import slurm.redis_task
import slurm.supervisor.task
import slurm.task
import workers.__main__
import workers.inference.__main__
import workers.rehearsal.__main__
import workers.rehearsal.orders
from prorl_mq.cli.arguments import COMMANDS
from prorl_mq.process.environment import VARIABLES
from prorl_mq.settings import VERSION, Setting, Settings, SubCommand
from prorl_mq.store import scripts
from prorl_mq.store.server import acl
from prorl_mq.testing import serve
from workers.node import keeper, leaving

PATHS: Final = {"DIR", "FILE"}
METAVARS: Final = {"URL", "JSON", "K=V"}  # those that say more than "text" does
TYPES: Final = {
    "str": "text", "int": "integer", "float": "number", "Path": "path", "count": "integer", "positive": "integer",
    "pause_seconds": "integer", "slots": "integer, or N+M", "integer": "integer", "quota": "integer or `none`",
    "moment": "`stored`, `synced`",
}  # fmt: skip
HEAD: Final = """# Configuration

Every flag and environment variable of the programs, and what they take by its place. A flag wins over its variable,
the variable over the default. Passwords are variables only: a command line can be read by everybody on the machine.
Each program has `--help`. This page is made from the declarations by `make docs-reference`.
"""
PROGRAMS: Final[Mapping[str, Settings | Mapping[str, SubCommand]]] = {
    "prorl-mq": {"": SubCommand("prorl-mq", (VERSION,)), **COMMANDS},
    "prorl-api": api.config.SETTINGS,
    "prorl-worker": workers.__main__.SETTINGS,
    "prorl-keeper": keeper.SETTINGS,
    "prorl-slurm": slurm.__main__.SUB_COMMANDS,
    "python -m sandbox": sandbox.__main__.SUB_COMMANDS,
    "python -m workers.inference": workers.inference.__main__.SETTINGS,
    "python -m workers.rehearsal": workers.rehearsal.__main__.SETTINGS,
    "python -m workers.rehearsal.orders": workers.rehearsal.orders.SETTINGS,
    "python -m workers.node.leaving": leaving.SETTINGS,
    "python -m slurm.task": slurm.task.SETTINGS,
    "python -m slurm.redis_task": slurm.redis_task.SETTINGS,
    "python -m slurm.api_task": slurm.api_task.SETTINGS,
    "python -m slurm.backend_task": slurm.backend_task.SETTINGS,
    "python -m slurm.supervisor.task": slurm.supervisor.task.SETTINGS,
    "python -m prorl_mq.dashboard": prorl_mq.dashboard.settings.SETTINGS,
    "python -m prorl_mq.store.server.acl": acl.SETTINGS,
    "python -m prorl_mq.store.scripts": scripts.SETTINGS,
    "python -m prorl_mq.testing.fake_backend": serve.SETTINGS,
}


class Row(NamedTuple):
    """One line of a table."""

    name: str
    variable: str
    type: str
    default: str
    unit: str
    meaning: str


def page() -> str:
    """The text of the page."""
    parts = [HEAD, *(f"## {program}\n\n{_table(_rows(program), 'commands')}" for program in PROGRAMS)]
    readers = {_row(each): ", ".join(each.programs) for each in VARIABLES}
    parts.append(f"## Variables without a flag\n\n{_table(readers, 'read by')}")
    return "\n".join(parts)


def settings_of(program: str) -> Iterator[tuple[str, Setting]]:
    """Each with the command that has it; the name of the only one is empty."""
    declared = PROGRAMS[program]
    commands = declared if isinstance(declared, Mapping) else {"": SubCommand("", declared)}
    for command, (_, settings) in commands.items():
        for each in settings:
            yield from ((command, one) for one in ((each,) if isinstance(each, Setting) else each))


def _rows(program: str) -> dict[Row, str]:
    found: defaultdict[Row, list[str]] = defaultdict(list)
    for command, setting in settings_of(program):
        found[_row(setting)].append(command)
    return {row: ", ".join(commands) for row, commands in found.items()}


def _row(setting: Setting) -> Row:
    variable, by_place = setting.environment_name, setting.name.islower() and not setting.name.startswith("--")
    return Row(
        name=f"`{setting.metavar if by_place and setting.metavar else setting.name}`",
        variable=f"`{variable}`" if variable and variable != setting.name else "",
        type=_type(setting),
        default="required" if setting.required else f"`{setting.default}`" if setting.shown_default else "",
        unit=setting.unit,
        meaning=setting.help,
    )


def _type(setting: Setting) -> str:
    if setting.alone is True:
        return "switch"
    kind = getattr(setting.type, "__name__", "str")
    if setting.choices:
        made = ", ".join(f"`{choice}`" for choice in setting.choices)
    elif kind == "str" and setting.metavar:
        made = "path" if setting.metavar in PATHS else setting.metavar if setting.metavar in METAVARS else "text"
    else:
        made = TYPES.get(kind, kind)
    return f"{made}, several" if setting.again or setting.nargs in {"*", "+"} else made


def _table(rows: Mapping[Row, str], last: str) -> str:
    """Without the columns that hold nothing."""
    lines = [[*Row._fields, last], *([*row, readers] for row, readers in rows.items())]
    used = [place for place in range(len(lines[0])) if any(line[place] for line in lines[1:])]
    head, *body = [[line[place].replace("|", "\\|") for place in used] for line in lines]
    return "\n".join(_lines([[cell.capitalize() for cell in head], ["---"] * len(used), *body])) + "\n"


def _lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    return (f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page())
    else:
        print(page(), end="")
