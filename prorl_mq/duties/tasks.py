"""Tasks of a duty that continue beside its turns, one at a time for each key."""

import asyncio
from collections.abc import Coroutine, Hashable, Iterable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Tasks(Generic[K]):
    """A key has its task from `start` until `end`, or a wait, finds it done."""

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def __contains__(self, key: K) -> bool:
        return key in self._tasks

    def start(self, key: K, work: Coroutine[Any, Any, None]) -> None:
        """Begins the work of a key that has no task."""
        assert key not in self._tasks, key
        self._tasks[key] = asyncio.create_task(work, name=f"task of {key}")

    async def wait(self, *, within_s: float, of: Iterable[K] | None = None) -> None:
        """Waits until the tasks of these keys, or all, are done, but not longer than `within_s`; then `end`."""
        tasks = self._tasks.values() if of is None else [self._tasks[key] for key in of]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        self.end()

    def end(self) -> None:
        """Takes out the tasks that are done. Raises what one of them raised; the others are left for the next call."""
        for key in [key for key, task in self._tasks.items() if task.done()]:
            self._tasks.pop(key).result()

    async def cancel(self) -> None:
        """Stops what still runs, and drops what it raises."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
