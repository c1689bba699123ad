"""Tells a call that is worked on from one that is lost, by a call for one token beside it.

A long answer and a backend that hangs look alike from here. The time of that token also bounds how long an answer may
take, so that a call which alone was lost is found as well.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from workers.inference.protocol import Completion, InferenceError, Silent
from workers.inference.run_clock import RunClock

FIRST: Final = 1 / 3  # of the silence that is allowed: then the token is asked for
SLACK: Final = 2.0  # times the time of a call for one token, for each token of an answer


async def answer_or_silence(
    call: "asyncio.Future[Completion]",
    probe: Callable[[], Awaitable[Completion]],
    clock: RunClock,
    address: str,
    tokens: float,
) -> Completion:
    """The answer to a call. Raises `Silent` where none is to be expected, `TimeoutError` where it comes too late.

    `probe` asks the same backend for one token; `tokens` is what the answer has at most, its prompt's share included.
    """
    time = asyncio.get_running_loop().time
    started = time()
    try:
        while not await _comes(call, min(clock.silence_s * FIRST, max(0.0, clock.left_s))):
            token_s = await _token_s(call, probe, clock.silence_s * (1 - FIRST))
            if call.done():
                break
            if token_s is None:
                raise Silent(f"backend {address} gave no answer in {time() - started:.1f} s, nor a token beside it")
            if time() - started > clock.silence_s + SLACK * tokens * token_s:
                raise Silent(f"backend {address} gave no answer in {time() - started:.1f} s, and answers other calls")
            if clock.left_s <= 0:
                clock.give_back(-clock.left_s)  # what it took to find out
                raise TimeoutError("the budget of RUN is used up")
        return call.result()
    finally:
        await _ended(call)


async def _token_s(
    call: "asyncio.Future[Completion]", probe: Callable[[], Awaitable[Completion]], within_s: float
) -> float | None:
    """Seconds until one token came, or the answer itself; None if neither did."""
    time = asyncio.get_running_loop().time
    started, asked = time(), asyncio.ensure_future(probe())
    try:
        await asyncio.wait({call, asked}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        if not (call.done() or asked.done()):
            return None
        return None if asked.done() and not call.done() and _failed(asked) else time() - started
    finally:
        await _ended(asked)


def _failed(asked: "asyncio.Future[Completion]") -> bool:
    """A refusal is an answer, too."""
    error = asked.exception()
    return isinstance(error, InferenceError) and error.retryable


async def _comes(call: "asyncio.Future[Completion]", within_s: float) -> bool:
    await asyncio.wait({call}, timeout=within_s if within_s < float("inf") else None)
    return call.done()


async def _ended(task: "asyncio.Future[Any]") -> None:
    """Cancels what is under way, and waits until its backend was told."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # it was seen
