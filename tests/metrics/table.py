"""docs/reference/metrics.md as data."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Row(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    sources: frozenset[str]


def rows() -> list[Row]:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    found = re.findall(r"^\| (prorl_\w+) \| (\w+) \| ([\w, ]*)\| ([\w, ]+) \|", text, re.MULTILINE)
    return [
        Row(name, kind, tuple(sorted(labels.replace(",", " ").split())), frozenset(sources.replace(",", " ").split()))
        for name, kind, labels, sources in found
    ]


def series() -> set[str]:
    """The names that a query may use."""
    ends = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {row.name + end for row in rows() for end in ends[row.kind]}
