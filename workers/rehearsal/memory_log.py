"""A log of turns in memory, for rollouts that are cut on purpose."""

from collections.abc import Sequence


class MemoryLog:
    """Implements `TurnLog`. With `before`, the rollout continues in a new sandbox, with all calls made again."""

    under_way = None
    restored = -1
    acted_s = 0.0
    inherited = 0
    leaves = False

    def __init__(self, before: Sequence[bytes] = (), volatile: Sequence[str] = ()) -> None:
        self.volatile = volatile
        self.before = list(before)
        self.records = list(before)
        self.rebuilds = bool(before)

    def open(self) -> None:
        pass

    async def append(self, record: bytes, *, wait: bool) -> None:  # noqa: ARG002
        self.records.append(record)

    async def part(self, record: bytes, *, wait: bool = False) -> None:
        pass

    async def note(self, text: str) -> None:
        pass

    async def keep_file(self, data: bytes) -> str:  # noqa: ARG002
        return ""

    async def kept_file(self, name: str) -> bytes | None:
        pass

    async def rebuilt(self) -> None:
        self.rebuilds = False

    async def border(self) -> None:
        pass

    def rests(self, turn: int) -> None:
        pass

    async def acts(self) -> None:
        pass
