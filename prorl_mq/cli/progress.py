"""The progress of a submission: one line rewritten on a terminal, a line now and then elsewhere."""

import sys
from collections import Counter
from typing import Final, TextIO

from prorl_mq.clock import monotonic
from prorl_mq.process.screen.terminal import control
from prorl_mq.schema.messages import GroupRecord

LINE_S: Final = 2.0  # between lines where nothing can be rewritten


class Progress:
    """Counts closed groups and tells of them."""

    def __init__(self, groups: int, samples: int, stream: TextIO | None = None) -> None:
        self.groups = groups
        self.samples = samples
        self.closed = 0
        self.verdicts: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.replaced = 0  # samples in whose place others were sampled
        self.causes: Counter[str] = Counter()  # of samples that ended with an error
        self._rewards = 0.0
        self._scored = 0
        self._began = monotonic()
        self._told_at = 0.0
        self._told = 0
        self._stream = stream or sys.stderr
        self._rewrites = self._stream.isatty()

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

    def tell(self, *, last: bool = False) -> None:
        """Shows the state, unless it was shown a moment ago."""
        now = monotonic()
        if self._rewrites:
            control(self._stream, "\r\x1b[K")
            self._stream.write(f"{self}" + ("\n" if last else ""))
        elif self.closed != self._told and (last or now - self._told_at >= LINE_S):
            self._stream.write(f"{self}\n")
            self._told_at, self._told = now, self.closed
        self._stream.flush()

    def __str__(self) -> str:
        done = sum(self.outcomes.values())
        seconds = max(monotonic() - self._began, 1e-3)
        parts = [f"{self.closed} of {self.groups} groups", f"{done - self.replaced} of {self.samples} samples"]
        parts += [f"{self.replaced} replaced"] if self.replaced else []
        parts += [f"{name} {count}" for name, count in sorted(self.outcomes.items())]
        if self._scored:
            parts.append(f"mean reward {self._rewards / self._scored:.3f}")
        return ", ".join([*parts, f"{done / seconds:.1f} a second"])
