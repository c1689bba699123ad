"""The division of a RUN worker's slots among processes: one event loop serves so many rollouts at most."""

import math
from collections.abc import Sequence
from typing import Final

MOST_SLOTS: Final = 300  # of one process, spare ones included


def divided(slots: int, spare: int = 0) -> Sequence[tuple[int, int]]:
    """Slots and spare slots of each process: as even as they can be, each with one slot at least.

    >>> divided(300), divided(301), divided(640, 16)
    ([(300, 0)], [(150, 0), (151, 0)], [(213, 5), (213, 5), (214, 6)])
    """
    count = min(slots, math.ceil((slots + spare) / MOST_SLOTS))

    def share(of: int, place: int) -> int:
        return of * (place + 1) // count - of * place // count

    return [(share(slots, place), share(spare, place)) for place in range(count)]
