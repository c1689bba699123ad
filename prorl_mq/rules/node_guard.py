"""The guard of a node that starts no sandboxes: what its starts show. Pure.

`FAILURES` failed starts in a row are a suspicion, decided by a start of the base image: rows name images, so a failed
one of those says nothing about the node. A shut node takes no job for a back-off that doubles each time, then one on
trial; a start that succeeds, also of the base image, opens it.
"""

from typing import Final, NamedTuple

FAILURES: Final = 3
BACK_OFF_S: Final = 5.0
LONGEST_BACK_OFF_S: Final = 300.0


class Starts(NamedTuple):
    """The starts of sandboxes on one node since the last that succeeded."""

    failed: int = 0
    shuts: int = 0
    until_s: float = 0.0  # shut until then, by the process's clock

    @property
    def shut(self) -> bool:
        return self.shuts > 0

    def suspect(self, now_s: float) -> bool:
        """True if a start of the base image should decide. One that was under way when it was shut changes nothing."""
        return now_s >= self.until_s if self.shut else self.failed >= FAILURES

    def takes(self, free: int, held: int, now_s: float) -> int:
        """Jobs that may be taken now, where `free` places are left and `held` jobs are under way."""
        if not self.shut:
            return free
        return min(free, 1) if now_s >= self.until_s and not held else 0


def failed(starts: Starts) -> Starts:
    """A sandbox did not start."""
    return starts._replace(failed=starts.failed + 1)


def shut(starts: Starts, now_s: float) -> Starts:
    """The base image did not start, either."""
    back_off_s = min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2**starts.shuts)
    return Starts(0, starts.shuts + 1, now_s + back_off_s)
