"""Rules of a batch's flow: how many groups it keeps in flight, which of them count, and when it is over. Pure.

Words: a group is *judged* when its last sample has ended and the filter has spoken, *kept* if it passed. *In play* are
drawn groups without a published record; *parked* is one of them that was kept but cannot count yet.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from prorl_mq.schema.dapo import Dapo, Reservoir
from prorl_mq.schema.status import Reason

T = TypeVar("T")
PRIOR_KEPT = 4  # what is believed before anything is known: every second group passes, with the weight of eight
PRIOR_JUDGED = 8


class BatchProgress(NamedTuple):
    """A batch in numbers of groups."""

    accepted: int = 0
    filtered: int = 0
    parked: int = 0
    in_play: int = 0  # parked ones too
    drawn: int = 0  # from reservoirs, ever
    waiting: int = 0  # in the reservoirs that the batch draws from
    arrived: bool = True  # all of its own groups are stored


def rate(kept: int, judged: int) -> float:
    """The running acceptance rate, smoothed by the prior. Never 0."""
    return (kept + PRIOR_KEPT) / (judged + PRIOR_JUDGED)


def in_flight(dapo: Dapo, now: BatchProgress) -> int:
    """Groups to have running: those still needed over the rate, times the margin, within `max_groups`."""
    kept = now.accepted + now.parked
    missing = dapo.target_groups - kept
    if missing <= 0:
        return 0
    expected = missing / rate(kept, kept + now.filtered) * dapo.oversample
    running = now.in_play - now.parked
    left = math.inf if dapo.max_groups is None else running + max(0, dapo.max_groups - now.drawn)
    return int(min(math.ceil(expected - 1e-9), left))


def to_draw(dapo: Dapo, now: BatchProgress) -> int:
    """Groups to draw now."""
    return max(0, min(now.waiting, in_flight(dapo, now) - (now.in_play - now.parked)))


def closing_reason(dapo: Dapo, now: BatchProgress) -> Reason | None:
    """`target` or `exhausted` when nothing more can count, else None."""
    if now.accepted >= dapo.target_groups:
        return "target"
    if now.in_play:
        return None
    used_up = dapo.max_groups is not None and now.drawn >= dapo.max_groups
    empty = not now.waiting and now.arrived and dapo.reservoir is Reservoir.BATCH
    return "exhausted" if used_up or empty else None


class Standing(NamedTuple, Generic[T]):
    """Parked groups that count for certain, and groups that cannot count any more; the rest must wait."""

    accept: list[T]
    reject: list[T]


def standing(in_play: Iterable[tuple[T, bool]], *, accepted: int, target: int) -> Standing[T]:
    """For `ordered`: groups in play in the order of their draw, each with whether it is parked.

    Accepted groups may lie after groups in play, and are counted as if they lay before: at most `target` groups that
    may count lie up to the last accepted one, so that both rules stay exact.
    """
    found: Standing[T] = Standing([], [])
    ahead = kept = accepted  # groups before that may count, and that are kept
    for ref, parked in in_play:
        if kept >= target:
            found.reject.append(ref)
        elif parked and ahead < target:
            found.accept.append(ref)
        ahead += 1
        kept += parked
    return found


def spread(rewards: Sequence[float]) -> float:
    """The largest minus the smallest. Two samples prove it, and more never take it back."""
    return max(rewards) - min(rewards) if rewards else 0.0
