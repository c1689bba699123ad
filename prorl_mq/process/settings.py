"""Settings of the programs: each declared once, with its flag, its variable, its default and its unit.

A flag wins over its variable, the variable over the default. `docs/reference/configuration.md` is made from the
declarations by `python -m ops.configuration`.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

DERIVED: Final = "derived"


class Setting(msgspec.Struct, frozen=True):
    """`name` is a flag, `--lease-ms`, or for a setting without one a variable, `PRORL_LOG`.

    `type` turns a text into the value and raises `ValueError` for a wrong one; a default that is a text goes through it
    too. `variable` of a flag is `PRORL_LEASE_MS` as a rule; None: it has none. `unit`, `metavar` and, of a setting
    without a flag, `programs` (what reads it) are for people.
    """

    name: str
    help: str = ""
    type: Callable[[str], Any] = str
    default: Any = None
    unit: str = ""
    metavar: str | None = None
    programs: tuple[str, ...] = ()
    variable: str | None = DERIVED

    @property
    def environment_name(self) -> str | None:
        """The variable, derived from the flag in this place alone."""
        if not self.name.startswith("--"):
            return self.name
        if self.variable == DERIVED:
            return "PRORL_" + self.name.removeprefix("--").replace("-", "_").upper()
        return self.variable

    def given(self, environ: Mapping[str, str]) -> Any:
        """The variable's text as it stands there, else the default. An empty text counts as given."""
        name = self.environment_name
        return self.default if name is None else environ.get(name, self.default)


REDIS: Final = Setting("--redis", "redis://, rediss:// or unix:// URL of the Redis server", metavar="URL")
RENDEZVOUS: Final = Setting("--rendezvous", "file that says where Redis is, where --redis does not", metavar="FILE")
NAMESPACE: Final = Setting("--namespace", "prefix of every key", default="prorl")


def add(parser: argparse.ArgumentParser, settings: Iterable[Setting], environ: Mapping[str, str]) -> None:
    """Adds a flag for each setting. Its variable is read now, and checked with the flags."""
    for each in settings:
        action = parser.add_argument(
            each.name, type=each.type, default=each.given(environ), metavar=each.metavar, help=_help(each)
        )
        action.setting = each  # type: ignore[attr-defined]  # for `python -m ops.configuration`


def _help(setting: Setting) -> str:
    default = "" if setting.default in {None, ""} else f"{setting.default} {setting.unit}".strip()
    facts = ", ".join(filter(None, (default or setting.unit, setting.environment_name)))
    return f"{setting.help} ({facts})".replace("%", "%%") if facts else setting.help
