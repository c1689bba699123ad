"""The record of a rollout's connections: a line for each host, and for each reason why one was refused."""

from collections.abc import Sequence
from typing import Final

from prorl_mq.schema.trajectory import HostReached

MOST_LINES: Final = 128
OTHERS: Final = "others"


class Ledger:
    """Counts. A sandbox may ask for any number of hosts, so those beyond the bound are one line."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], list[int]] = {}

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
        if key not in self._lines and len(self._lines) >= MOST_LINES:
            key = (OTHERS, "refused" if why else "")
        line = self._lines.setdefault(key, [0, 0, 0])
        line[0] += 1
        return line
