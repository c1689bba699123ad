"""The figures of the last release, in `bench/release.toml`, and the verdict on new ones."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench import report

FILE = Path(__file__).parents[1] / "release.toml"
HEADER = """\
# Figures that `make check-bench` allows to rise by `tolerance` (0.05: five per cent) and no more.
# `make check-bench RECORD=1` writes it for a release, on a calm machine; tolerances and reasons are edited by hand.
"""
Figures = Mapping[str, float]
Measured = Mapping[str, Figures]  # by part


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Figures with one tolerance. All are counts or ratios of which less is better."""

    tolerance: float
    reason: str
    figures: Figures


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """`of` is the version or commit, `machine` a line for readers; no verdict depends on it."""

    of: str
    machine: str
    parts: Mapping[str, Part]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. A missing one is refused: a gate that measures nothing would let everything pass."""

    name: str
    measured: float | None
    release: float | None
    allowed: float | None

    @property
    def said(self) -> str:
        if self.measured is None:
            return "not measured"
        if self.allowed is None or self.release is None:
            return "not recorded"
        if self.measured > self.allowed:
            return "ROSE"
        return "fell" if self.measured < 2 * self.release - self.allowed else "as before"

    @property
    def refused(self) -> bool:
        return self.said not in {"fell", "as before"}


def read(file: Path = FILE) -> Release:
    return msgspec.convert(tomllib.loads(file.read_text()), Release)


def write(release: Release, file: Path = FILE) -> None:
    lines = [HEADER, f"of = {json.dumps(release.of)}", f"machine = {json.dumps(release.machine)}"]
    for name, part in release.parts.items():
        lines += ["", f"[parts.{name}]", f"tolerance = {part.tolerance}", f"reason = {json.dumps(part.reason)}"]
        lines += [f"[parts.{name}.figures]", *(f"{json.dumps(each)} = {x}" for each, x in part.figures.items())]
    file.write_text("\n".join(lines) + "\n")


def recorded(last: Release, found: Measured, *, of: str, machine: str) -> Release:
    """The new figures with the tolerances and reasons of the last ones."""
    parts = {
        name: msgspec.structs.replace(
            part, figures={each: report.significant(x, 3) for each, x in found.get(name, {}).items()}
        )
        for name, part in last.parts.items()
    }
    return Release(of=of, machine=machine, parts=parts)


def judge(last: Release, found: Measured) -> list[Verdict]:
    verdicts = []
    for name in dict.fromkeys([*last.parts, *found]):
        part = last.parts.get(name)
        old, new = part.figures if part else {}, found.get(name, {})
        for each in dict.fromkeys([*old, *new]):
            before = old.get(each)
            allowed = None if part is None or before is None else before * (1 + part.tolerance)
            verdicts.append(Verdict(name=each, measured=new.get(each), release=before, allowed=allowed))
    return verdicts


def table(verdicts: Sequence[Verdict]) -> str:
    lines = []
    for each in verdicts:
        values = (each.measured, each.release, each.allowed)
        lines.append([each.name, *("-" if x is None else report.figure(x) for x in values), each.said])
    return report.table(["figure", "measured", "release", "allowed", "verdict"], lines)
