"""The progress of an installation: which part, what its installer said last, and about how far it is."""

from collections.abc import Mapping
from typing import TextIO

from prorl_mq.clock import monotonic
from prorl_mq.process.screen.progress_line import ProgressLine, duration


class Installing(ProgressLine):
    """`seconds` says how long each part usually takes: inside a part the bar follows the clock."""

    def __init__(self, seconds: Mapping[str, float], stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._seconds = seconds
        self._ended: list[str] = []
        self._part = self._what = self._line = ""
        self._part_began = monotonic()

    def begin(self, part: str, what: str) -> None:
        self._part, self._what, self._line, self._part_began = part, what, "", monotonic()

    def said(self, line: str) -> None:
        self._line = line.strip() or self._line

    def end(self) -> None:
        self._ended.append(self._part)
        self.tell()

    def counts(self) -> tuple[int, int]:
        return len(self._ended), len(self._seconds)

    def fraction(self) -> float:
        """A part that takes longer than usual stays short of its end."""
        done = sum(self._seconds[part] for part in self._ended)
        if self._part not in self._ended and self._part:
            usual = self._seconds[self._part]
            done += min(monotonic() - self._part_began, 0.95 * usual)
        return done / sum(self._seconds.values())

    def __str__(self) -> str:
        ended, wanted = self.counts()
        if ended == wanted:
            return f"installed in {duration(monotonic() - self._began)}"
        lasted = duration(monotonic() - self._part_began)
        return f"{ended + 1} of {wanted}, {self._part} ({lasted}): {self._line or self._what}"
