"""Settings of the programs: each declared once, with its flag, its variable, its default and its unit.

A flag wins over its variable, the variable over the default. Command lines are parsed from the declarations, and
`--help` and `docs/reference/configuration.md` are made from them (`python -m ops.configuration`).
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

KEEP: Final = argparse.SUPPRESS  # as a default: a flag that is not given leaves no attribute


class Setting(msgspec.Struct, frozen=True):
    """`name` is a flag, `--lease-ms`, a variable that no flag has, `PRORL_LOG`, or an argument by its place, `tasks`.

    `type` turns a text into the value and raises `ValueError` for a wrong one; a default that is a text goes through it
    too. `variable` is read where the flag is not given. `alone` is the value of a flag without one: True makes it a
    switch, which never has one. `nargs` is that of argparse, `?`, `*` or `+`. What is given `again` is added to a list.
    `unit`, `metavar` and, of a variable without a flag, `programs` (what reads it) are for people.
    """

    name: str
    help: str = ""
    type: Callable[[str], Any] = str
    default: Any = None
    unit: str = ""
    metavar: str | None = None
    variable: str | None = None
    choices: tuple[str, ...] = ()
    required: bool = False
    alone: Any = None
    nargs: str | None = None
    again: bool = False
    programs: tuple[str, ...] = ()

    @property
    def environment_name(self) -> str | None:
        return self.name if self.name.isupper() else self.variable

    @property
    def shown_default(self) -> str:
        """The default with its unit; empty where there is none to show."""
        return "" if self.default in {None, "", KEEP} else f"{self.default} {self.unit}".strip()

    def given(self, environ: Mapping[str, str]) -> Any:
        """The variable's text as it stands there, else the default. An empty text counts as given."""
        name = self.environment_name
        return self.default if name is None else environ.get(name, self.default)


Settings = Sequence[Setting | tuple[Setting, ...]]  # those of a tuple within exclude each other


class SubCommand(NamedTuple):
    """One command of a program that has several."""

    what: str
    settings: Settings = ()


REDIS: Final = Setting(
    "--redis",
    "redis://, rediss:// or unix:// URL of the Redis server, redis://HOST:PORT,HOST:PORT of a primary and replicas, "
    "redis+sentinel://HOST:PORT,HOST:PORT/NAME, or redis+cluster://HOST:PORT,HOST:PORT of some nodes of a cluster",
    metavar="URL",
    variable="PRORL_REDIS",
)
RENDEZVOUS: Final = Setting(
    "--rendezvous", "file that says where Redis is, where --redis does not", metavar="FILE",
    variable="PRORL_RENDEZVOUS",
)  # fmt: skip
STATE_DIR: Final = Setting(
    "--state-dir", "directory of data and logs", type=Path, default=".state", metavar="DIR", variable="PRORL_STATE"
)
OPEN: Final = Setting(
    "--open", "ask for no token on loopback: every user of this machine then reads and changes everything", alone=True
)
NAMESPACE: Final = Setting("--namespace", "prefix of every key", default="prorl", variable="PRORL_NAMESPACE")
VERSION: Final = Setting("--version", "print the version, and end", alone=True)

P = TypeVar("P", bound=argparse.ArgumentParser)


def add(parser: argparse._ActionsContainer, settings: Settings, environ: Mapping[str, str]) -> None:
    """Adds each setting to a command line. Its variable is read now, and checked with the flags."""
    for each in settings:
        if isinstance(each, Setting):
            parser.add_argument(each.name, **_options(each, environ))
        else:
            add(parser.add_mutually_exclusive_group(), each, environ)


def add_commands(parser: P, commands: Mapping[str, SubCommand], environ: Mapping[str, str]) -> dict[str, P]:
    """Adds the commands of a program. The parser of each by its name; the name is parsed as `command`."""
    known = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=type(parser))
    made = {}
    for name, (what, settings) in commands.items():
        made[name] = known.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        add(made[name], settings, environ)
    return made


def add_version(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds `VERSION`, which prints a text and ends the program."""
    parser.add_argument(VERSION.name, action="version", version=text, help=_help(VERSION))


def _options(setting: Setting, environ: Mapping[str, str]) -> dict[str, Any]:
    """Options of `add_argument`: only those that differ from its own defaults, as not every action knows each."""
    if setting.alone is True:
        return {"action": "store_true", "help": _help(setting)}
    options = {
        "type": setting.type,
        "default": setting.given(environ),
        "metavar": setting.metavar,
        "help": _help(setting),
        "choices": setting.choices or None,
        "required": (setting.required and setting.given(environ) is None) or None,
        "nargs": setting.nargs,
        "const": setting.alone,
    }
    if setting.again:
        options |= {"action": "extend" if setting.nargs else "append", "default": []}
    return {name: value for name, value in options.items() if value is not None}


def _help(setting: Setting) -> str:
    facts = ", ".join(filter(None, (setting.shown_default or setting.unit, setting.environment_name)))
    return f"{setting.help} ({facts})".strip().replace("%", "%%") if facts else setting.help
