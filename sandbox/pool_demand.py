"""How many warm sandboxes of each shape are wanted: a pure function of what was asked for, and when."""

from collections import Counter

from sandbox.pool_shape import Shape

WINDOW_S = 600  # a trainer that learns between two batches asks for nothing meanwhile


class Demand:
    """The requests of the last ten minutes, counted by second. Times are seconds of any steady clock."""

    def __init__(self) -> None:
        self._asked: dict[Shape, Counter[int]] = {}

    def asked(self, shape: Shape, now_s: float) -> None:
        self._asked.setdefault(shape, Counter())[int(now_s)] += 1

    def forget(self, shape: Shape) -> None:
        """Until it is asked for again."""
        self._asked.pop(shape, None)

    def targets(self, now_s: float, room: int) -> dict[Shape, int]:
        """As many of a shape as its busiest second asked for; together at most `room`, the busiest shape first."""
        for shape, seconds in list(self._asked.items()):
            for second in [second for second in seconds if second < now_s - WINDOW_S]:
                del seconds[second]
            if not seconds:
                del self._asked[shape]
        targets: dict[Shape, int] = {}
        peaks = Counter({shape: max(seconds.values()) for shape, seconds in self._asked.items()})
        for shape, peak in peaks.most_common():
            targets[shape] = min(peak, room)
            room -= targets[shape]
        return targets
