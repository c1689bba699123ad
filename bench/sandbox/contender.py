"""One way of doing something, as the rounds see it: set up once, then asked for samples in every round."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

Samples = Mapping[str, Sequence[float]]  # quantity: seconds of each time
Measure = Callable[[int], Awaitable[Samples]]


class ContenderMissing(Exception):
    """It cannot be measured here; the message says what is missing."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Where contenders run."""

    scratch: Path  # a private directory that every user can pass; each contender makes a directory of its own in it
    tools: Path  # what `make sandbox-tools` has filled
    venvs: Path  # made by bench/venvs.sh

    def place(self, name: str) -> Path:
        """A new directory."""
        place = self.scratch / name
        place.mkdir(mode=0o755)
        return place


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """`ours` names the contender that its figures are compared with; None for that one itself."""

    name: str
    samples: int  # in each round
    make: Callable[[Setting], AbstractAsyncContextManager[Measure]]
    ours: str | None = None
