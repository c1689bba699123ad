"""The circuit breaker of a backend, an image or a task family: what evidence makes of it. Pure; `observe` and `assign`
keep it in Redis.

A backend's calls: `FAILURES` failed ones in a row open it, for a back-off that doubles each time. When that is over it
is half open: `assign` lets one job through on trial, whose call closes it or opens it for longer. Probes: `MISSES` in
a row mean that the backend is dead: calls to it are given up, and it stays open for as long as probes fail.

Attempts with an image or of a task family: `SHARED.failures` failed ones in a row open it. When its back-off is over,
`let_through` lets one job try, and another one after `TRIAL_MS` if nothing has come of that.
"""

from enum import StrEnum
from typing import Final, NamedTuple

FAILURES: Final = 3
MISSES: Final = 3
BACK_OFF_MS: Final = 1_000
LONGEST_BACK_OFF_MS: Final = 15_000
LONGEST_SHUT_MS: Final = 2 * LONGEST_BACK_OFF_MS  # shut for longer than that was written while the clock was wrong
UNANSWERED_MS: Final = 6_000  # how long one more missed probe keeps a dead backend shut
TRIAL_MS: Final = LONGEST_SHUT_MS


class Tolerance(NamedTuple):
    """The failures in a row that open a breaker, and how long it stays open."""

    failures: int
    back_off_ms: int
    longest_ms: int


BACKEND: Final = Tolerance(FAILURES, BACK_OFF_MS, LONGEST_BACK_OFF_MS)
SHARED: Final = Tolerance(20, 5_000, LONGEST_SHUT_MS)


class BreakerState(StrEnum):
    """State of a backend's breaker: it decides whether the backend gets jobs."""

    CLOSED = "closed"  # it does
    OPEN = "open"  # it gets none
    HALF_OPEN = "half_open"  # it gets one, on trial


class Breaker(NamedTuple):
    """Its state, as numbers in one text: `assign.lua` writes the same."""

    failures: int = 0  # calls in a row
    openings: int = 0  # since it was last closed; 0 while it is closed
    until_ms: int = 0  # shut until then, by Redis's clock
    misses: int = 0  # probes in a row
    trial: int = 0  # 1: a job is out on trial
    stamp: int = 0  # sets equal states apart that came from different evidence, so that none of it is lost

    @property
    def text(self) -> str:
        return "" if self == CLOSED else " ".join(str(int(number)) for number in self)

    @property
    def dead(self) -> bool:
        return self.misses >= MISSES

    def state(self, now_ms: int) -> BreakerState:
        if not self.openings:
            return BreakerState.CLOSED
        shut = now_ms < self.until_ms <= now_ms + LONGEST_SHUT_MS
        return BreakerState.OPEN if shut else BreakerState.HALF_OPEN


CLOSED: Final = Breaker()


def parse(text: str) -> Breaker:
    """The inverse of `Breaker.text`."""
    return Breaker(*map(int, text.split())) if text else CLOSED


def failed(breaker: Breaker, now_ms: int, jitter: float, tolerance: Tolerance = BACKEND) -> Breaker:
    """A call or an attempt failed. `jitter` in [0, 1) takes up to half of the back-off away, so that trials do not fall
    together.
    """
    if breaker.state(now_ms) is BreakerState.OPEN and not breaker.trial:
        return breaker  # a call that was under way when it opened says nothing new
    failures = breaker.failures + 1
    if not breaker.openings and failures < tolerance.failures:
        return breaker._replace(failures=failures)
    back_off_ms = min(tolerance.longest_ms, tolerance.back_off_ms << min(breaker.openings, 8))
    until_ms = now_ms + int(back_off_ms * (1 - jitter / 2))
    return Breaker(failures, breaker.openings + 1, until_ms, breaker.misses)


def let_through(breaker: Breaker, now_ms: int) -> Breaker:
    """One job tries: the others wait for what comes of it. Nothing changes unless the breaker is half open."""
    if breaker.state(now_ms) is not BreakerState.HALF_OPEN:
        return breaker
    return breaker._replace(trial=1, until_ms=now_ms + TRIAL_MS)


def put_back(breaker: Breaker, now_ms: int) -> Breaker:
    """The job that was let through has shown nothing: another one may try at once."""
    return breaker._replace(trial=0, until_ms=now_ms) if breaker.trial else breaker


def succeeded(breaker: Breaker) -> Breaker:
    """A call succeeded. A dead backend is not revived by one that was slow to come."""
    return breaker if breaker.dead or not (breaker.failures or breaker.openings) else Breaker(misses=breaker.misses)


def missed(breaker: Breaker, now_ms: int) -> Breaker:
    """A probe failed."""
    breaker = breaker._replace(misses=min(breaker.misses + 1, MISSES))
    if not breaker.dead:
        return breaker
    until_ms = max(breaker.until_ms, now_ms + UNANSWERED_MS)
    return breaker._replace(openings=max(1, breaker.openings), until_ms=until_ms, trial=0)


def answered(breaker: Breaker) -> Breaker:
    """A probe succeeded. It closes nothing: whether calls succeed is for a trial to show."""
    return breaker._replace(misses=0)
