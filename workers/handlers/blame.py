"""Decides who is to blame where a scorer or an environment raises: the policy's text, the row or the infrastructure.

The same scorer is given a canary, a text that it must take. If it takes the canary, the policy's text is to blame: the
family says what that earns. If it takes no canary either, nothing was said about the text, and there is no reward.
No text of a policy leads to a missing reward, and no failure of ours to a reward.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from prorl_mq.schema.codec import sendable
from workers.handler import NodeCrowded
from workers.handlers.clocks import FAIR, AskTime, EvalClock
from workers.handlers.forks import Forks, ScorerFailed
from workers.handlers.rows import BadRow

_Q = TypeVar("_Q")
_R = TypeVar("_R")
MAX_REASON_CHARS: Final = 500
CANARIES: Final = ("0", "a", "\\boxed{0}", "<answer>0</answer>", "{}", "")  # where a right answer is not known


class Raised(Exception):
    """A scorer or an environment raised. `passing`: it may not do so again (I/O, memory, time, a fork that died)."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


class Blamed(NamedTuple):
    """The policy's text is to blame; `reason` is what the scorer raised over it, `taken` what it gave for a canary."""

    reason: str
    taken: Any


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """An exception as it leaves a fork."""

    reason: str
    passing: bool = False


class ScorerReply(msgspec.Struct, frozen=True, kw_only=True):
    """Common part of every reply of a fork: what the scorer or environment raised, if it did."""

    fault: Fault | None = None


_A = TypeVar("_A", bound=ScorerReply)


def fault_of(error: Exception) -> Fault:
    """Text that is no UTF-8, as in a name of the policy's choice, is written with escapes."""
    reason = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARS]
    passing = any(isinstance(each, OSError | MemoryError) for each in (error, error.__cause__))
    return Fault(reason=sendable(reason), passing=passing)


async def reply_of(forks: Forks, reply: type[_A], request: msgspec.Struct, given: AskTime | None = None) -> _A:
    """Raises `Raised` for what the fork raised or died of, and `ScorerFailed`."""
    answer = await forks.ask_as(reply, request, given)
    if answer is None:
        raise Raised("it took too long, too much memory, or crashed", passing=True)
    if answer.fault is not None:
        raise Raised(answer.fault.reason, passing=answer.fault.passing)
    return answer


async def blaming(
    attempt: Callable[[_Q, AskTime], Awaitable[_R]],
    said: _Q,
    canaries: Sequence[_Q],
    what: str,
    clock: EvalClock | None = None,
) -> _R | Blamed:
    """The attempt's result for what was said, or the blame. Where nothing else decides, the same end again does.

    With EVAL's clock all attempts together end in its time: the first one before a canary could no longer be tried.
    Raises `BadRow` if `what` raises over every canary, or `ScorerFailed` if time, memory or I/O may be the cause, and
    `NodeCrowded` if EVAL's time was over before that of the text, or of a canary.
    """
    given = clock.asks(FAIR) if clock else AskTime()
    try:
        return await attempt(said, given)
    except Raised as raised:
        last = raised
    taken = await _tried(attempt, canaries, what, clock)
    if last.passing:
        given.end = clock.end if clock else given.end
        try:
            return await attempt(said, given)
        except Raised as again:
            last = again
    if clock and given.cut:
        clock.cut(f"{what}: {last}", had_s=given.had_s, own_s=given.own_s, starved=given.starved)
    return Blamed(str(last), taken)


async def _tried(
    attempt: Callable[[_Q, AskTime], Awaitable[_R]], canaries: Sequence[_Q], what: str, clock: EvalClock | None
) -> _R:
    """The result for the first canary that passes."""
    faults: list[Raised] = []
    for canary in canaries:
        given = clock.asks() if clock else AskTime()
        try:
            return await attempt(canary, given)
        except Raised as raised:
            faults.append(raised)
        if given.cut:
            raise NodeCrowded(f"{what}: EVAL's time was over before it had taken a text that it must take")
    reasons = "; ".join(dict.fromkeys(map(str, faults))) or "there is none"
    told = f"{what} takes no text, not even one that it must take: {reasons}"
    raise ScorerFailed(told) if any(fault.passing for fault in faults) else BadRow(told)
