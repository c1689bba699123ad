"""The progress of an evaluation: rate, time to the end, solved so far."""

from collections.abc import Mapping
from typing import TextIO

from prorl_mq.process.screen.progress_line import ProgressLine
from prorl_mq.schema.messages import GroupRecord


class EvaluationProgress(ProgressLine):
    """Counts samples as their groups close. `solved_at` is by set; a group's set is named by `sets`."""

    def __init__(
        self, wanted: int, solved_at: Mapping[str, float], sets: Mapping[str, str], stream: TextIO | None = None
    ) -> None:
        super().__init__(stream)
        self.wanted = wanted
        self.ended = self.scored = self.solved = 0
        self.sets = sets
        self._solved_at = solved_at

    def counts(self) -> tuple[int, int]:
        return self.ended, self.wanted

    def add(self, record: GroupRecord) -> None:
        """Counts a closed group, and shows the state unless it was shown a moment ago."""
        least = self._solved_at[self.sets[record.group_id]]
        for sample in record.samples:
            self.ended += 1
            self.scored += sample.reward is not None
            self.solved += sample.reward is not None and sample.reward >= least
        self.tell()

    def __str__(self) -> str:
        parts = [f"{self.ended} of {self.wanted} samples"]
        if self.scored:
            parts.append(f"{self.solved} of {self.scored} solved ({self.solved / self.scored:.0%})")
        if self.ended > self.scored:
            parts.append(f"{self.ended - self.scored} without a result")
        return ", ".join([*parts, *self.pace()])
