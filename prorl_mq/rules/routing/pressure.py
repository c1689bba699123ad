"""When a pool is short of room in its caches, and how much its sessions may take then. Pure.

Backends tell their load by metrics. Where one preempts, lets requests wait, or would need most of its cache if all jobs
that hold it ran at once, each backend of its pool has a limit (`room` says what becomes of it).
"""

from typing import Final, NamedTuple

SHARE: Final = 0.95  # of a backend's capacity that sessions may take
LEAST_SHARE: Final = 0.5
LESS: Final = 0.9  # of that share is left where turns are preempted, or wait in the backend
MORE: Final = 0.03  # is added every `CALM_MS` without
CALM_MS: Final = 30_000
LESS_EVERY_MS: Final = 60_000  # turns that began before the last time end meanwhile
PRESSED: Final = 0.7  # part of the capacity that its sessions need: from there on it has a ledger
RELIEVED: Final = 0.5
RELIEVED_MS: Final = 60_000  # it has needed less than `RELIEVED` for so long: the ledger is put away
COARSE: Final = 20  # a limit is told in such parts of the capacity, so that it is news seldom
MOST: Final = 2**53  # tokens of a seat or a limit; nobody has more


class CacheLimit(NamedTuple):
    """Tokens that the sessions of one backend may need, and whether it falls behind."""

    tokens: int
    behind: bool = False

    @property
    def text(self) -> str:
        return f"{self.tokens}{' behind' if self.behind else ''}"


class EngineLoad(NamedTuple):
    """Load of a backend at one moment, as its metrics tell it."""

    at_ms: float
    capacity: int  # tokens that its cache has room for
    usage: float  # part of them that running requests hold, 0 to 1
    running: int
    waiting: int
    preempted: int  # since it started


class Pressure(NamedTuple):
    """Conclusions from the loads so far."""

    share: float = SHARE
    pressed: bool = False
    calm_since_ms: float = 0.0  # nothing was preempted or waited since then, or since the share was raised last
    lowered_ms: float = 0.0
    relieved_since_ms: float = 0.0  # 0: it needs more than `RELIEVED`
    waited: bool = False  # in the look before
    behind_ms: float = 0.0  # when requests were last seen to wait in it for two looks


def needed(told: EngineLoad, jobs: int) -> float:
    """The part of its capacity that all sessions of a backend need, of the size of those that run."""
    return told.usage * max(1.0, jobs / told.running) if told.running else 0.0


def judge(before: Pressure, last: EngineLoad | None, told: EngineLoad, jobs: int) -> Pressure:
    """The conclusion from two looks at a backend. `jobs` hold it."""
    now = told.at_ms
    preempted = last is not None and told.preempted > last.preempted
    queued = told.waiting > 0 and before.waited
    trouble = preempted or (queued and told.usage >= RELIEVED)  # else they wait for something else than room
    short = trouble or queued
    share, calm, lowered = before.share, before.calm_since_ms or now, before.lowered_ms
    if trouble:
        calm = now
        if now - lowered >= LESS_EVERY_MS:
            share, lowered = max(LEAST_SHARE, share * LESS), now
    elif now - calm >= CALM_MS:
        share, calm = min(SHARE, share + MORE), now
    need = needed(told, jobs)
    relieved = 0.0 if short or need >= RELIEVED else before.relieved_since_ms or now
    kept = before.pressed and not (relieved and now - relieved >= RELIEVED_MS)
    behind_ms = now if queued else before.behind_ms
    return Pressure(share, short or need >= PRESSED or kept, calm, lowered, relieved, told.waiting > 0, behind_ms)


def limit(now: Pressure, told: EngineLoad) -> CacheLimit:
    """The limit of a backend whose pool has a ledger, as workers are told."""
    share = int(now.share * COARSE + 1e-9) / COARSE
    return CacheLimit(int(share * told.capacity), bool(now.behind_ms) and told.at_ms - now.behind_ms < CALM_MS)


def read_limit(text: str) -> CacheLimit | None:
    """The reverse of `CacheLimit.text`. None for one that this release cannot read, as of a later one."""
    tokens, _, behind = text.partition(" ")
    try:
        limit = CacheLimit(int(tokens), behind == "behind")
    except ValueError:
        return None
    return limit if 0 <= limit.tokens <= MOST else None
