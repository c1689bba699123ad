"""An event loop in a thread of its own, on which plain code makes the calls of `AsyncClient`."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from prorl_mq.client.asynchronous import AsyncClient

T = TypeVar("T")


class Threaded:
    """Base of `Client`: the thread, its end, and one call on it."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="prorl-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections and ends the thread. Idempotent."""
        if self._loop.is_closed():
            return
        self._run(self._client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # also KeyboardInterrupt: the call must not continue in the thread
            future.cancel()
            raise

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        try:
            while (item := self._run(_next(items))) is not None:
                yield item
        finally:
            if not self._loop.is_closed():
                self._run(_end(items))


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


async def _end(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        with contextlib.suppress(RuntimeError):  # it is still ending after an interrupted step
            await close()
