"""A value with many readers that is computed at most once a second."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from prorl_mq.clock import monotonic

T = TypeVar("T")
FRESH_S: Final = 1.0


class Shared(Generic[T]):
    """Callers at the same time wait for one and the same."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._made: tuple[float, T] | None = None

    async def get(self) -> T:
        """The value, at most a second old."""
        async with self._lock:
            if self._made is None or monotonic() - self._made[0] > FRESH_S:
                self._made = (monotonic(), await self._make())
            return self._made[1]
