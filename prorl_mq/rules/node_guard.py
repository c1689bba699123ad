"""The guard of a node that starts no sandboxes: what its starts show. Pure.

`FAILURES` failed starts in a row shut the node, unless all were of one image: then the image may be to blame. A failed
start of the base image, or one that says that the node cannot run sandboxes, is the node's. A shut node takes no job
for a back-off that doubles each time, then one on trial; a start that succeeds opens it.
"""

from typing import Final, NamedTuple

FAILURES: Final = 3
BACK_OFF_S: Final = 5.0
LONGEST_BACK_OFF_S: Final = 300.0
OF_THE_NODE: Final = ""  # in the place of an image: the failure is the node's


class Starts(NamedTuple):
    """The starts of sandboxes on one node since the last that succeeded."""

    failed: tuple[str, ...] = ()  # the images of the newest that failed
    shuts: int = 0
    until_s: float = 0.0  # shut until then, by the process's clock

    @property
    def shut(self) -> bool:
        return self.shuts > 0

    def takes(self, free: int, held: int, now_s: float) -> int:
        """Jobs that may be taken now, where `free` places are left and `held` jobs are under way."""
        if not self.shut:
            return free
        return min(free, 1) if now_s >= self.until_s and not held else 0


def failed(starts: Starts, image: str, now_s: float) -> Starts:
    """A sandbox did not start. One that was under way when the node was shut changes nothing."""
    if starts.shut and now_s < starts.until_s:
        return starts
    newest = (*starts.failed, image)[-FAILURES:]
    guilty = OF_THE_NODE in newest or len(set(newest)) > 1
    if not starts.shut and (len(newest) < FAILURES or not guilty):
        return starts._replace(failed=newest)
    back_off_s = min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2**starts.shuts)
    return Starts(newest, starts.shuts + 1, now_s + back_off_s)
