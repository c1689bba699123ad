"""The progress of an evaluation: rate, time to the end, solved so far."""

import sys
from collections.abc import Mapping
from typing import Final, TextIO

from prorl_mq.clock import monotonic
from prorl_mq.process.screen.terminal import control
from prorl_mq.schema.messages import GroupRecord

LINE_S: Final = 5.0  # between lines where nothing can be rewritten


class EvaluationProgress:
    """Counts samples as their groups close. `solved_at` is by set; a group's set is named by `sets`."""

    def __init__(
        self, wanted: int, solved_at: Mapping[str, float], sets: Mapping[str, str], stream: TextIO | None = None
    ) -> None:
        self.wanted = wanted
        self.ended = self.scored = self.solved = 0
        self.sets = sets
        self._solved_at = solved_at
        self._began = monotonic()
        self._told_at = self._began
        self._stream = stream or sys.stderr
        self._rewrites = self._stream.isatty()

    def add(self, record: GroupRecord) -> None:
        """Counts a closed group, and shows the state unless it was shown a moment ago."""
        least = self._solved_at[self.sets[record.group_id]]
        for sample in record.samples:
            self.ended += 1
            self.scored += sample.reward is not None
            self.solved += sample.reward is not None and sample.reward >= least
        self.tell()

    def tell(self, *, last: bool = False) -> None:
        now = monotonic()
        if self._rewrites:
            control(self._stream, "\r\x1b[K")
            self._stream.write(f"{self}" + ("\n" if last else ""))
        elif last or now - self._told_at >= LINE_S:
            self._stream.write(f"{self}\n")
            self._told_at = now
        self._stream.flush()

    def __str__(self) -> str:
        seconds = max(monotonic() - self._began, 1e-3)
        parts = [f"{self.ended} of {self.wanted} samples"]
        if self.scored:
            parts.append(f"{self.solved} of {self.scored} solved ({self.solved / self.scored:.0%})")
        if self.ended > self.scored:
            parts.append(f"{self.ended - self.scored} without a result")
        parts.append(f"{self.ended / seconds:.1f} a second")
        if 0 < self.ended < self.wanted:
            parts.append(f"about {_duration((self.wanted - self.ended) * seconds / self.ended)} to go")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
