"""The number of warm sandboxes wanted of each shape: a pure function of the requests and their times."""

from collections import Counter, deque

from sandbox.keeper.pool_shape import Shape

WINDOW_S = 600  # a trainer that learns between two batches asks for nothing meanwhile
BURST_S = 1.0  # how long the pool may take to start what it has given away


class WarmDemand:
    """The bursts of the last ten minutes: how many were asked for within a second. Times are of any steady clock."""

    def __init__(self) -> None:
        self._recent: dict[Shape, deque[float]] = {}
        self._bursts: dict[Shape, Counter[int]] = {}  # second: the largest burst that ended in it

    def asked(self, shape: Shape, now_s: float) -> None:
        recent = self._recent.setdefault(shape, deque())
        recent.append(now_s)
        while recent[0] <= now_s - BURST_S:
            recent.popleft()
        bursts = self._bursts.setdefault(shape, Counter())
        bursts[int(now_s)] = max(bursts[int(now_s)], len(recent))

    def forget(self, shape: Shape) -> None:
        """Until it is asked for again."""
        self._recent.pop(shape, None)
        self._bursts.pop(shape, None)

    def targets(self, now_s: float, room: int) -> dict[Shape, int]:
        """As many of a shape as its largest burst; together at most `room`, the most wanted shape first."""
        for shape, bursts in list(self._bursts.items()):
            for second in [second for second in bursts if second < now_s - WINDOW_S]:
                del bursts[second]
            if not bursts:
                self.forget(shape)
        targets: dict[Shape, int] = {}
        for shape, burst in Counter({shape: max(each.values()) for shape, each in self._bursts.items()}).most_common():
            targets[shape] = min(burst, room)
            room -= targets[shape]
        return targets
