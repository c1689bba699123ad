"""Threads that users' filters run in. A call that hangs cannot be ended: it keeps its thread from one tenant alone."""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
Ended = tuple[T | None, Exception | None]
EACH: Final = 4  # of one tenant
ALL: Final = 32  # of one process


class FilterBusy(Exception):
    """No thread can be had for a tenant's filter, and none will be soon."""


class FilterHangs(Exception):
    """A call took longer than it may."""


class FilterThreads:
    """At most `EACH` of one tenant and `ALL` together, those included whose caller has given up waiting."""

    def __init__(self) -> None:
        self._tenants: dict[threading.Thread, str] = {}
        self._hung: set[threading.Thread] = set()
        self._waiting: list[asyncio.Future[None]] = []

    async def call(self, tenant: str, work: Callable[[], T], *, name: str, within_s: float) -> T:
        """The answer of `work`; waits for a thread while another call may still give one back.

        Raises `FilterBusy` before `work` has begun, `FilterHangs` when it takes longer, and what it raises itself.
        """
        await self._free(tenant)
        answer: asyncio.Future[Ended[T]] = asyncio.get_running_loop().create_future()
        thread = self._start(tenant, work, name, answer)
        try:
            async with asyncio.timeout(within_s):
                given, error = await answer
        except TimeoutError:
            raise FilterHangs from None
        finally:
            if thread in self._tenants:
                self._hung.add(thread)
                self._wake()
        if error is not None:
            raise error
        return given  # type: ignore[return-value]

    async def _free(self, tenant: str) -> None:
        while self._full(Counter(self._tenants.values()), tenant):
            if self._full(Counter(self._tenants[each] for each in self._hung), tenant):
                raise FilterBusy(
                    f"filters of tenant {tenant!r} hang in all threads that are left to it ({EACH} of {ALL}): correct "
                    "the filter or its options, then restart the API; its groups stay due"
                )
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    @staticmethod
    def _full(taken: Counter[str], tenant: str) -> bool:
        return taken[tenant] >= EACH or taken.total() >= ALL

    def _start(
        self, tenant: str, work: Callable[[], T], name: str, answer: asyncio.Future[Ended[T]]
    ) -> threading.Thread:
        """A thread that nothing waits for at the end, and not of the loop's pool."""
        loop = asyncio.get_running_loop()

        def tell(ended: Ended[T]) -> None:
            self._tenants.pop(thread, None)
            self._hung.discard(thread)
            self._wake()
            if not answer.done():
                answer.set_result(ended)

        def run() -> None:
            ended = _ended(work)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(tell, ended)

        thread = threading.Thread(target=run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more of them
            raise FilterBusy(f"no thread for a filter of tenant {tenant!r}: {error}; its groups stay due") from error
        self._tenants[thread] = tenant
        return thread

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


def _ended(work: Callable[[], T]) -> Ended[T]:
    try:
        return work(), None
    except Exception as raised:
        return None, raised
    except BaseException as raised:  # it would end the event loop, where only a thread should end
        return None, RuntimeError(f"{type(raised).__name__}: {raised}")
