"""The Lua scripts of this release: loaded from their files, called by the hash of their text.

A process runs the text that it shipped with, also during a rolling upgrade; so EVALSHA, not server functions.
"""

import argparse
import hashlib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from prorl_mq.settings import Setting, add
from prorl_mq.store.server.connection import ask

_pack = msgspec.msgpack.Encoder().encode
Command = tuple[Any, ...]
_INCLUDE = "--@include "
SETTINGS = (Setting("--dump", "directory for the scripts", type=Path, required=True, metavar="DIR"),)


class Script:
    """One script: its text with the shared parts put in, and the hash that Redis knows it by."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - the hash that EVALSHA wants

    async def __call__(self, redis: "Redis", keys: list[str], arguments: Any, *raw: bytes | int) -> Any:
        """Runs the script. `arguments` travel as one MessagePack value, `raw` as they are."""
        by_name, by_text = self.commands(keys, arguments, *raw)
        try:
            return await ask(redis, *by_name)
        except NoScriptError:
            return await ask(redis, *by_text)

    def commands(self, keys: list[str], arguments: Any, *raw: bytes | int) -> tuple[Command, Command]:
        """The commands that run it: the first on a server that has its text, the second on any."""
        packed = () if arguments is None else (_pack(arguments),)
        call = (len(keys), *keys, *packed, *raw)
        return ("EVALSHA", self.sha, *call), ("EVAL", self.text, *call)


@cache
def script(name: str) -> Script:
    """The script of a verb."""
    return Script(name, _source(name))


def names() -> list[str]:
    """Every verb that has a script."""
    files = resources.files("prorl_mq.store").joinpath("lua").iterdir()
    return sorted(file.name.removesuffix(".lua") for file in files if file.name.endswith(".lua"))


def _source(name: str) -> str:
    folder = resources.files("prorl_mq.store").joinpath("lua")
    lines = []
    for line in folder.joinpath(f"{name}.lua").read_text().splitlines():
        if line.startswith(_INCLUDE):
            shared = folder.joinpath("shared", f"{line.removeprefix(_INCLUDE).strip()}.lua").read_text()
            lines += [f"-- shared: {line.removeprefix(_INCLUDE)}", shared]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    """`python -m prorl_mq.store.scripts --dump DIR` writes the assembled scripts for a linter or a reader."""
    parser = argparse.ArgumentParser(prog="python -m prorl_mq.store.scripts", description=main.__doc__)
    add(parser, SETTINGS, {})
    directory: Path = parser.parse_args().dump
    directory.mkdir(parents=True, exist_ok=True)
    for name in names():
        (directory / f"{name}.lua").write_text(_source(name))


if __name__ == "__main__":
    main()
