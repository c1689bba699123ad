"""Parser of every command line: it answers a wrong name with the nearest valid one."""

import argparse
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from prorl_mq.schema.strict import closest


class Parser(argparse.ArgumentParser):
    """Says `did you mean`."""

    def __init__(self, **about: Any) -> None:
        super().__init__(**about, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Exit code 2, and the hint that helps most."""
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice:
            message = unknown("command" if "COMMAND" in message else "value", choice[1], words(choice[2]))
        hint = "; --help lists them" if message.endswith(" required: COMMAND") else ""
        self.exit(2, f"{self.prog}: {message}{hint}\n")


def words(listed: str) -> list[str]:
    return [word.strip(" '") for word in listed.split(",")]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = closest(name, known)
    return f"there is no {what} {name!r}: {f'did you mean {near}?' if near else 'there are ' + ', '.join(known)}"


def positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to 1024")
    return int(text)
