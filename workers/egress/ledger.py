"""The record of a rollout's connections: a line for each host, and for each reason why one was refused."""

from collections.abc import Sequence
from typing import Final

from prorl_mq.schema.trajectory import HostReached

MOST_REFUSALS: Final = 64  # lines of them
OTHERS: Final = "others"


class Ledger:
    """Counts. What is opened is on the task's list, which is short, and always has its line. A sandbox may ask for any
    number of other hosts: refusals beyond the bound are one line, so that they hide nothing.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], list[int]] = {}
        self._refusals = 0

    def opened(self, host: str) -> list[int]:
        """Notes a connection. The line: how many there were, and bytes that were sent and received so far."""
        return self._noted(host, "")

    def refused(self, asked: str, why: str) -> bool:
        """Notes a refusal; True if it is the first on its line."""
        return self._noted(asked, why)[0] == 1

    def lines(self) -> Sequence[HostReached]:
        return [
            HostReached(host=host, refused=why, connections=count, sent_bytes=sent, received_bytes=received)
            for (host, why), (count, sent, received) in sorted(self._lines.items())
        ]

    def _noted(self, host: str, why: str) -> list[int]:
        key = (host, why)
        if why and key not in self._lines:
            key = key if self._refusals < MOST_REFUSALS else (OTHERS, "refused")
            self._refusals += 1
        line = self._lines.setdefault(key, [0, 0, 0])
        line[0] += 1
        return line
