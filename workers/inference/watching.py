"""Tells a call that is worked on from one that is lost, by a call for one token beside it.

A long answer and a backend that hangs look alike from here. The time of that token also bounds how long an answer may
take, so that a call which alone was lost is found as well.
"""

import asyncio
import math
from typing import Final

from workers.inference.one_token import OneToken, Send, ended
from workers.inference.protocol import Completion, Silent
from workers.inference.run_clock import RunClock
from workers.inference.waits import Waits

FIRST: Final = 1 / 3  # of the silence that is allowed: before, a call for one token that fails is no verdict
ASK_S: Final = 2.0  # at most: then the token is asked for, and so often again
LATE_S: Final = 1.0  # a token or a probe that takes longer is waited for, and that is said
SLACK: Final = 2.0  # times the time of a call for one token, for each token of an answer


class CallWatch:
    """Looks after the calls of a process to its backends."""

    def __init__(self, waits: Waits) -> None:
        self.tokens = OneToken()
        self._waits = waits

    async def answer_or_silence(
        self, call: "asyncio.Future[Completion]", probe: Send, clock: RunClock, address: str, tokens: float
    ) -> Completion:
        """The answer to a call. Raises `Silent` where none is to be expected, `TimeoutError` where it comes too late.

        `probe` asks the same backend for one token; `tokens` is what the answer has at most, its prompt's share
        included.
        """
        time = asyncio.get_running_loop().time
        started = time()
        try:
            while not await _comes(call, _unasked_s(clock)):
                within_s = max(clock.silence_s * (1 - FIRST), clock.silence_s - (time() - started))
                token_s = await self._token_s(call, probe, address, within_s)
                if call.done():
                    break
                silent_s = time() - started
                if token_s is None and silent_s >= clock.silence_s * FIRST:
                    raise Silent(f"backend {address} gave no answer in {silent_s:.1f} s, nor a token beside it")
                if token_s is not None and silent_s > clock.silence_s + SLACK * tokens * token_s:
                    raise Silent(f"backend {address} gave no answer in {silent_s:.1f} s, and answers other calls")
                if clock.left_s <= 0:
                    clock.give_back(-clock.left_s)  # what it took to find out
                    raise TimeoutError("the budget of RUN is used up")
            return call.result()
        finally:
            await ended(call)

    async def _token_s(
        self, call: "asyncio.Future[Completion]", probe: Send, address: str, within_s: float
    ) -> float | None:
        """Seconds that one token takes; None if none came in time. A backend that answers others meanwhile is late:
        what was lost is the call for the token, and the next one tells more.
        """
        time = asyncio.get_running_loop().time
        started = time()
        try:
            with self._waits.noted_after(LATE_S, f"backend {address} has not answered for some seconds"):
                return await self.tokens.seconds(address, probe, call, within_s)
        except TimeoutError:
            return time() - started if self.tokens.heard_since(address, started) else None


def _unasked_s(clock: RunClock) -> float:
    """Without a budget no silence is too long, and nothing is asked."""
    if clock.silence_s == math.inf:
        return math.inf
    return min(ASK_S, clock.silence_s * FIRST, max(0.0, clock.left_s))


async def _comes(call: "asyncio.Future[Completion]", within_s: float) -> bool:
    """True if it is done within that time. `asyncio.wait` of one future takes twice as long as this."""
    if call.done():
        return True
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def over(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_later(within_s, over) if within_s < math.inf else None
    call.add_done_callback(over)
    try:
        await waiter
    finally:
        call.remove_done_callback(over)
        if timer is not None:
            timer.cancel()
    return call.done()
