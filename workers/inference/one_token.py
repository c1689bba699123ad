"""Calls for one token to backends that owe an answer: one to each at a time, whoever of this process asks.

Thousands of long answers are under way in a process, and a call beside each would be a load of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from workers.inference.protocol import Completion, InferenceError

KEPT_S: Final = 5.0  # what a call for one token has shown is known for so long
Send = Callable[[], Awaitable[Completion]]


class _Asking:
    """One call under way, and how many wait for it."""

    def __init__(self, task: "asyncio.Task[float | None]") -> None:
        self.task = task
        self.askers = 0


class OneToken:
    """The time that backends need for one token, as their last call for one has shown."""

    def __init__(self) -> None:
        self._asking: dict[str, _Asking] = {}
        self._known: dict[str, tuple[float, float | None]] = {}  # when, and what
        self._heard: dict[str, float] = {}  # when another call was answered

    def heard(self, address: str) -> None:
        """The backend answered a call."""
        self._heard[address] = asyncio.get_running_loop().time()

    def heard_since(self, address: str, time: float) -> bool:
        """True if it answered a call after this time of the event loop."""
        return self._heard.get(address, float("-inf")) > time

    async def seconds(
        self, address: str, send: Send, call: "asyncio.Future[Completion]", within_s: float
    ) -> float | None:
        """Seconds that one token took, at most `KEPT_S` ago; None where the call for it failed.

        Raises `TimeoutError` if nothing came within so long; returns 0 if `call` is answered before.
        """
        at, known = self._known.get(address, (float("-inf"), None))
        if asyncio.get_running_loop().time() - at < KEPT_S:
            return known
        asking = self._asking.get(address)
        if asking is None:
            asking = self._asking[address] = _Asking(asyncio.ensure_future(self._ask(address, send)))
        asking.askers += 1
        try:
            either: set[asyncio.Future[Any]] = {call, asking.task}
            await asyncio.wait(either, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            if not (call.done() or asking.task.done()):
                self._forget(address, asking)  # it may be lost itself: who asks next sends another one
                raise TimeoutError(f"no token in {within_s:.1f} s")
            return 0.0 if call.done() else asking.task.result()
        finally:
            asking.askers -= 1
            if not asking.askers:
                self._forget(address, asking)
                await ended(asking.task)

    async def _ask(self, address: str, send: Send) -> float | None:
        """A refusal is an answer, too."""
        time = asyncio.get_running_loop().time
        started = time()
        try:
            await send()
            found: float | None = time() - started
        except InferenceError as error:
            found = None if error.retryable else time() - started
        self._known[address] = time(), found
        return found

    def _forget(self, address: str, asking: _Asking) -> None:
        if self._asking.get(address) is asking:
            del self._asking[address]


async def ended(task: "asyncio.Future[Any]") -> None:
    """Cancels what is under way, and waits until its backend was told."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # it was seen
