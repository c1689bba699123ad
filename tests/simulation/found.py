"""What finds the removal of each check of the scripts: `found.toml`, read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec


class Covered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other checks refuse in place of one: without all of them tests of the verb fail. `why` they do."""

    checks: Sequence[str]
    tests: str
    why: str


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By a check's name: a seed; a test, below `tests/verbs`; or the checks that cover it."""

    seed: Mapping[str, int]
    test: Mapping[str, str]
    covered: Mapping[str, Covered]


FOUND: Final = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=Table)
