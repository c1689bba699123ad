"""Blocks that a report is made of: one list, written as Markdown and as a page."""

from collections.abc import Sequence

import msgspec


class Heading(msgspec.Struct, frozen=True):
    """A heading of level 1 or 2."""

    text: str
    level: int = 2


class Paragraph(msgspec.Struct, frozen=True):
    """Plain text."""

    text: str


class Command(msgspec.Struct, frozen=True):
    """A command line to copy."""

    text: str


class Anchor(msgspec.Struct, frozen=True):
    """A text that leads to a place relative to the report."""

    text: str
    target: str


class Table(msgspec.Struct, frozen=True):
    """A table; cells are texts, of which numbers are already written, or links. `left`: columns of words."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Anchor]]
    left: int = 1


class Bar(msgspec.Struct, frozen=True):
    """A value with its interval."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


class Chart(msgspec.Struct, frozen=True):
    """Values with their intervals, one below the other, between two ends of a scale."""

    title: str
    bars: Sequence[Bar]
    start: float = 0.0
    end: float = 1.0


Block = Heading | Paragraph | Command | Table | Chart
