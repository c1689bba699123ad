"""Dynamic sampling as plain Python: one run, whose batches come one after another, and what each of them must accept.

Written from the rules as the documents state them, without the code's own formulas.
"""

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class Oracle:
    """`good` says which prompts pass the filter; the caller tells which group has ended."""

    good: dict[str, bool]
    target: int = 0
    surplus: str = "carry"
    oversample: Fraction = Fraction(1)
    max_groups: int | None = None
    reason: str = "none"
    reservoir: list[str] = field(default_factory=list)
    draws: int = 0
    accepted: list[str] = field(default_factory=list)
    filtered: list[str] = field(default_factory=list)
    playing: list[str] = field(default_factory=list)  # in the order of their draw, over all batches
    ended: list[str] = field(default_factory=list)  # in the order of their end: unjudged, or kept and waiting
    order: list[str] = field(default_factory=list)
    unneeded: list[str] = field(default_factory=list)

    def open(self, names: list[str], target: int, surplus: str, oversample: Fraction, max_groups: int | None) -> None:
        """A new batch takes over what is in play."""
        self.target, self.surplus, self.oversample, self.max_groups = target, surplus, oversample, max_groups
        self.reservoir, self.draws, self.reason = list(names), 0, "none"
        self.accepted, self.filtered, self.unneeded = [], [], []
        self.ended.sort(key=self.order.index)
        self.go_on()

    def end(self, name: str) -> None:
        """The last sample of a group has ended."""
        self.ended.append(name)
        self.go_on()

    def go_on(self) -> None:
        """Verdicts first, then draws."""
        self._judge()
        if self.reason == "none":
            self._draw()

    def _judge(self) -> None:
        for name in [name for name in self.ended if not self.good[name]]:
            self._leave(name, self.filtered)
        if self.surplus == "ordered":
            self._judge_in_order()
        else:
            for name in list(self.ended):
                if len(self.accepted) < self.target:
                    self._leave(name, self.accepted)
        if len(self.accepted) == self.target:
            self._close("target")

    def _judge_in_order(self) -> None:
        """Accepted is who stands among the first `target` groups that are good or may still prove so."""
        candidates = [name for name in self.order if name in self.playing or name in self.accepted]
        for name in candidates[: self.target]:
            if name in self.ended:
                self._leave(name, self.accepted)
        sure = [name for name in candidates if name in self.accepted or name in self.ended]
        if len(sure) >= self.target:
            last = self.order.index(sure[self.target - 1])
            for name in [name for name in self.playing if self.order.index(name) > last]:
                self._leave(name, self.unneeded)

    def _draw(self) -> None:
        kept = len(self.accepted) + (len(self.ended) if self.surplus == "ordered" else 0)
        missing = self.target - kept
        rate = Fraction(kept + 4, kept + len(self.filtered) + 8)
        wanted = -int(-(missing / rate * self.oversample) // 1) if missing > 0 else 0
        running = [name for name in self.playing if name not in self.ended]
        room = wanted - len(running)
        if self.max_groups is not None:
            room = min(room, self.max_groups - self.draws)
        new, self.reservoir = self.reservoir[: max(0, room)], self.reservoir[max(0, room) :]
        self.order += new
        self.playing += new
        self.draws += len(new)
        used_up = self.max_groups is not None and self.draws >= self.max_groups
        if not self.playing and (not self.reservoir or used_up):
            self._close("exhausted")

    def _leave(self, name: str, to: list[str]) -> None:
        to.append(name)
        self.playing.remove(name)
        if name in self.ended:
            self.ended.remove(name)

    def _close(self, reason: str) -> None:
        self.reason = reason
        self.unneeded += self.reservoir
        self.reservoir = []
        if self.surplus != "carry" or reason != "target":
            self.unneeded += self.playing
            self.playing, self.ended = [], []
