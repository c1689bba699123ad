"""Results that a client was given twice: a crash of Redis that loses its last second lets a group be published again.

The iterators leave the second one out, and it is acknowledged with the first: nobody else knows of it.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Final

REMEMBERED: Final = 65_536  # acknowledged cursors


class Repeats:
    """The cursors that one client has acknowledged, and those of the same groups that came again."""

    def __init__(self) -> None:
        self._acknowledged: dict[tuple[str, str], None] = {}
        self._again: dict[tuple[str, str], list[str]] = {}  # by the first cursor of the group

    def came_again(self, run_id: str, first: str, cursor: str) -> None:
        """A group that came under one cursor has come under another."""
        self._again.setdefault((run_id, first), []).append(cursor)

    def owed(self, run_id: str) -> list[str]:
        """Cursors to acknowledge now, since that of their group's first result was."""
        known = [key for key in self._again if key[0] == run_id and key in self._acknowledged]
        return [cursor for key in known for cursor in self._again[key]]

    def with_repeats(self, run_id: str, cursors: Sequence[str]) -> list[str]:
        """Those, and all that came again for them."""
        if not self._again:
            return list(cursors)
        return [*cursors, *(again for cursor in cursors for again in self._again.get((run_id, cursor), ()))]

    def acknowledged(self, run_id: str, cursors: Sequence[str]) -> None:
        """The service has deleted them."""
        self._acknowledged |= dict.fromkeys(zip(repeat(run_id), cursors))
        done = set(cursors) if self._again else ()
        for key in [key for key in self._again if key[0] == run_id]:
            self._again[key] = [cursor for cursor in self._again[key] if cursor not in done]
            if not self._again[key]:
                del self._again[key]
        while len(self._acknowledged) > REMEMBERED:
            del self._acknowledged[next(iter(self._acknowledged))]
