# ruff: noqa: INP001  (a program, not a module)
"""Writes docs/reference/cli.md and docs/reference/http.md from the declarations of commands and operations.

python -m ops.reference_pages DIR      # of both pages
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from api.openapi import document
from api.routes import OPERATIONS
from prorl_mq import __version__
from prorl_mq.cli.arguments import COMMANDS
from prorl_mq.cli.completion import flat
from prorl_mq.settings import Setting, SubCommand

CLI: Final = """# Commands of `prorl-mq`

What each command takes. [Configuration](configuration.md) has types, defaults and variables of the environment, also of
the other programs. Exit codes: 0 done, 1 it did not work, 2 a wrong command line or file, 130 interrupted. This page is
made from the declarations by `make docs-reference`.
"""
HTTP: Final = """# HTTP interface

Every operation of the API, by path. A running service has the whole description, with schemas, at `/openapi.json` and
for a browser at `/docs`. With `--tokens` every operation but the public ones needs a bearer token. Errors are problem
documents (RFC 9457), whose types [troubleshooting](../howto/troubleshooting.md#errors) explains. This page is made from
the operations by `make docs-reference`.
"""


def cli() -> str:
    """The page of commands."""
    return "\n".join([CLI, *(_command(name, command) for name, command in COMMANDS.items())])


def http() -> str:
    """The page of operations, a table for each group."""
    paths: Mapping[str, Mapping[str, Any]] = document(OPERATIONS, version=__version__, tokens=True)["paths"]
    groups: dict[str, list[str]] = {}
    for path, methods in paths.items():
        for method, about in methods.items():
            query = ", ".join(f"`{each['name']}`" for each in about["parameters"] if each["in"] == "query")
            open_ = "" if "security" in about else "public"
            row = f"| `{method.upper()} {path}` | {about['summary']} | {query} | {open_} |".replace("\n", " ")
            groups.setdefault(about["tags"][0], []).append(row)
    head = "| operation | what it does | query | token |\n|---|---|---|---|"
    return "\n".join([HTTP, *(f"## {tag}\n\n{head}\n" + "\n".join(rows) + "\n" for tag, rows in groups.items())])


def _command(name: str, command: SubCommand) -> str:
    settings = list(flat(command.settings))
    places = [each for each in settings if not each.name.startswith("-")]
    words = " ".join(
        filter(None, ["prorl-mq", name, *map(_place, places), "[OPTIONS]" * (len(places) < len(settings))])
    )
    rows = "\n".join(_rows(settings))
    table = f"\n| argument | meaning |\n|---|---|\n{rows}\n" if rows else ""
    return f"## {name}\n\n`{words}`\n\n{command.what[0].upper()}{command.what[1:]}.\n{table}"


def _place(setting: Setting) -> str:
    shown = setting.metavar or setting.name.upper()
    return {"?": f"[{shown}]", "*": f"[{shown} ...]", "+": f"{shown} [{shown} ...]"}.get(setting.nargs or "", shown)


def _rows(settings: list[Setting]) -> Iterator[str]:
    for each in settings:
        by_place = not each.name.startswith("-")
        name = f"`{each.metavar or each.name.upper()}`" if by_place else f"`{each.name}`"
        choices = f" ({', '.join(f'`{choice}`' for choice in each.choices)})" if each.choices else ""
        yield f"| {name} | {each.help}{choices} |".replace("\n", " ")


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    (directory / "cli.md").write_text(cli())
    (directory / "http.md").write_text(http())
