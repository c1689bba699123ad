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
        choice = re.search(r"argument ([^:]*): invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice:
            argument, given, known = choice.groups()
            what = "command" if argument == "COMMAND" else "value"
            message = unknown(what, given, words(known))
            if what == "value":
                message = f"{argument}: {message}"
                message += "" if argument.startswith("-") else f" (`{self.prog} {self._places()}`)"
        hint = "; --help lists them" if message.endswith(" required: COMMAND") else ""
        self.exit(2, f"{self.prog}: {message}{hint}\n")

    def _places(self) -> str:
        """The arguments that are known by their place: who leaves one out gives the next in its place."""
        places = [(action.dest.upper(), action.nargs) for action in self._get_positional_actions()]
        return " ".join(f"[{name}]" if nargs in {"?", "*"} else name for name, nargs in places)


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
