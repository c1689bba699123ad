"""Filters of groups worth training on: the built-in rules, and users' own, found by entry point."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, assert_never

import msgspec

from prorl_mq.errors import InvalidBatch
from prorl_mq.rules.dapo import spread
from prorl_mq.rules.filter_threads import FilterBusy, FilterHangs, FilterThreads
from prorl_mq.schema.dapo import Accuracy, Dapo, Filter, Predicate, Spread
from prorl_mq.schema.messages import SampleRecord
from prorl_mq.schema.task_schema import nearest

GROUP = "prorl_mq.filters"
RIGHT_ABOVE = 0.5
PATIENCE_S = 10.0  # for a user's own filter


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A group whose samples have all ended. `rewards` are those of the samples that count, in order, nulls left out."""

    task_id: str
    data_source: str
    rewards: Sequence[float]
    samples: Sequence[SampleRecord]


Keep = Callable[[Candidate, dict[str, Any]], bool]


class Filtered(StrEnum):
    """Answer of a filter: kept, or which way the group was uninformative."""

    KEPT = "kept"
    RIGHT = "all right"
    WRONG = "all wrong"
    MIXED = "filtered"


class FilterFailed(Exception):
    """A user's filter raised, hung, or is not installed."""


def check(dapo: Dapo) -> None:
    """Raises `InvalidBatch` for what could not be carried out."""
    match dapo.filter:
        case Accuracy(least=least, most=most) if least > most:
            raise InvalidBatch(f"the accuracy filter keeps nothing: least {least} is above most {most}")
        case Predicate(name=name) if name not in (known := names()):
            raise InvalidBatch(
                f"no filter {name!r} is installed where this API process runs: {nearest(name, known)}; "
                f"a package offers one under the entry point group {GROUP!r}"
            )
        case _:
            pass


def names() -> list[str]:
    """Users' filters that are installed here."""
    return sorted(each.name for each in entry_points(group=GROUP))


def keeps(rule: Filter, candidate: Candidate) -> bool:
    """Applies the rule. A user's filter runs here and now; raises what it raises."""
    rewards = candidate.rewards
    match rule:
        case Spread(above=above):
            return spread(rewards) > above
        case Accuracy():
            right = sum(reward > rule.right_above for reward in rewards)
            return bool(rewards) and rule.least <= right / len(rewards) <= rule.most
        case Predicate(name=name, options=options):
            return bool(_load(name)(candidate, options))
        case _:
            assert_never(rule)


async def judge(rule: Filter, candidate: Candidate, *, tenant: str) -> Filtered:
    """Raises `FilterFailed`, and `FilterBusy` where no thread can be had for a tenant's own filter: nothing is said of
    the group. Such a filter may take ten seconds.
    """
    if isinstance(rule, Predicate):
        kept = await _predicate(rule, candidate, tenant)
    else:
        kept = keeps(rule, candidate)
    return Filtered.KEPT if kept else sort(candidate.rewards, rule.right_above if isinstance(rule, Accuracy) else None)


async def _predicate(rule: Predicate, candidate: Candidate, tenant: str) -> bool:
    name, work = f"filter {rule.name}", partial(keeps, rule, candidate)
    try:
        return await _threads.call(tenant, work, name=name, within_s=PATIENCE_S)
    except FilterBusy:
        raise
    except FilterHangs:
        raise FilterFailed(f"the filter {rule.name!r} took longer than {PATIENCE_S:.0f} s") from None
    except Exception as error:
        raise FilterFailed(f"the filter {rule.name!r} raised {type(error).__name__}: {error}"[:500]) from error


def sort(rewards: Sequence[float], right_above: float | None = None) -> Filtered:
    """Which way a group is uninformative. Right is a reward above one half, unless the filter says otherwise."""
    right = [reward > (RIGHT_ABOVE if right_above is None else right_above) for reward in rewards]
    if not right:
        return Filtered.MIXED
    return Filtered.RIGHT if all(right) else Filtered.MIXED if any(right) else Filtered.WRONG


_threads = FilterThreads()


@cache
def _load(name: str) -> Keep:
    [found] = entry_points(group=GROUP, name=name)
    loaded: Keep = found.load()
    return loaded
