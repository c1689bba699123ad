"""Groups behind fronts of which none may go: a part of them is looked at in each turn, round after round.

What one turn reads is bounded, whatever waits. A line is a purpose of a run; its place is counted from its first group.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from prorl_mq.duties.apart import Apart
from prorl_mq.rules.fair_share import Path
from prorl_mq.schema.ids import run_ref
from prorl_mq.schema.items import Wanted
from prorl_mq.schema.messages import Purpose
from prorl_mq.store import runs
from prorl_mq.store.store import Store

LINES: Final = 4  # looked at in one turn
AT_ONCE: Final = 1_024  # groups of them together
Waits = Callable[[str, Wanted], bool]


class _Part(NamedTuple):
    """A part of a line, from `start` to `end`; `groups` is empty once none of them may go."""

    start: int
    end: int
    groups: Sequence[Wanted]
    last: bool


class BehindFronts:
    """The parts of the lines that are looked at now. Each moves on when none of its groups may go, or none is left."""

    def __init__(self, store: Store, apart: Apart, *, front: int) -> None:
        self._store = store
        self._apart = apart
        self._front = front
        self._parts: dict[Path, _Part] = {}
        self._taken: set[Path] = set()  # lines of whose part some groups were admitted

    @property
    def groups(self) -> Mapping[Path, Sequence[Wanted]]:
        """Groups of each line's part, in order."""
        return {path: part.groups for path, part in self._parts.items()}

    def admitted(self, paths: Collection[Path]) -> None:
        """Has these lines' parts read again where they are."""
        self._taken.update(self._parts.keys() & paths)

    async def look(self, blocked: Sequence[Path], waits: Waits) -> None:
        """Keeps parts of the blocked lines alone, and moves on in those of which all groups wait."""
        still = set(blocked)
        self._parts = {path: part for path, part in self._parts.items() if path in still}
        self._taken &= self._parts.keys()
        for path, part in self._parts.items():
            if all(waits(path[0], group) for group in part.groups):
                self._parts[path] = part._replace(groups=())
        fresh = [path for path in blocked if path not in self._parts]
        idle = [path for path, part in self._parts.items() if path in self._taken or not part.groups]
        chosen = [*fresh, *idle][:LINES]
        for path in chosen:
            await self._apart.do(run_ref(*path[:2]), partial(self._read, path, AT_ONCE // len(chosen)))

    async def _read(self, path: Path, most: int) -> None:
        start = self._start(path)
        self._parts.pop(path, None)  # at the end of the turns
        self._taken.discard(path)
        run, purpose = run_ref(*path[:2]), Purpose(path[2])
        found = await runs.behind(self._store, run, purpose, start=start, most=most)
        self._parts[path] = _Part(start, start + most, found.groups, found.last)

    def _start(self, path: Path) -> int:
        part = self._parts.get(path)
        if part is None:
            return self._front
        if path in self._taken:
            return part.start
        return self._front if part.last else part.end
