"""When a sandbox is saved: as often as what would be lost without it is worth what saving costs."""

from typing import Final

BYTES_S: Final = 256 << 10  # of one rollout's checkpoints: a thousand rollouts write 256 MiB/s at most
SPARSE: Final = 30  # times as long as saving took, it is not done again
# Behind a save that has found nothing new, the next one waits for so many turns, or for calls that took so long: they
# are soon made again, and saving costs as much as a command.
QUIET_TURNS: Final = 8
QUIET_CALLS_S: Final = 1.0


class SavePace:
    """The pace of one rollout. Times are those of the event loop, in seconds."""

    def __init__(self) -> None:
        self._not_before = self._acts_since = 0.0
        self._quiet = False  # the last save has found nothing new
        self._turns, self._calls_s = 0, 0.0  # since then

    def acts(self, now: float) -> None:
        """The calls of a turn begin."""
        self._acts_since = now

    def due(self, now: float) -> bool:
        """True if a sandbox is to be saved behind this turn, whose calls have ended."""
        self._turns += 1
        self._calls_s += now - self._acts_since
        worth = not self._quiet or self._turns >= QUIET_TURNS or self._calls_s >= QUIET_CALLS_S
        return worth and now >= self._not_before

    def saved(self, began: float, ended: float, size: int, *, changed: bool) -> None:
        """It was saved, or that was tried: `size` bytes are to be kept."""
        self._not_before = ended + SPARSE * (ended - began) + size / BYTES_S
        self._quiet, self._turns, self._calls_s = not changed, 0, 0.0
