"""The progress of a submission."""

from collections import Counter
from typing import TextIO

from prorl_mq.process.screen.progress_line import ProgressLine
from prorl_mq.schema.messages import GroupRecord


class Progress(ProgressLine):
    """Counts closed groups and their samples."""

    def __init__(self, groups: int, samples: int, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self.groups = groups
        self.samples = samples
        self.closed = 0
        self.verdicts: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.replaced = 0  # samples in whose place others were sampled
        self.causes: Counter[str] = Counter()  # of samples that ended with an error
        self._rewards = 0.0
        self._scored = 0

    def counts(self) -> tuple[int, int]:
        return sum(self.outcomes.values()) - self.replaced, self.samples

    def add(self, record: GroupRecord) -> None:
        """Counts one closed group."""
        self.closed += 1
        self.verdicts[record.verdict.value] += 1
        for sample in record.samples:
            self.outcomes[sample.outcome.value] += 1
            self.replaced += sample.replaced
            if sample.error is not None:
                self.causes[f"{sample.error.cause or 'unknown'}: {sample.error.type}"] += 1
            if sample.reward is not None:
                self._scored += 1
                self._rewards += sample.reward
        self.tell()

    def __str__(self) -> str:
        parts = [f"{self.closed} of {self.groups} groups", f"{self.counts()[0]} of {self.samples} samples"]
        parts += [f"{self.replaced} replaced"] if self.replaced else []
        parts += [f"{name} {count}" for name, count in sorted(self.outcomes.items())]
        if self._scored:
            parts.append(f"mean reward {self._rewards / self._scored:.3f}")
        return ", ".join([*parts, *self.pace()])
