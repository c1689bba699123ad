"""Filters of groups worth training on: the built-in rules, and users' own, found by entry point."""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from typing import Any, assert_never

import msgspec

from prorl_mq.errors import InvalidBatch
from prorl_mq.rules.dapo import spread
from prorl_mq.schema.dapo import Accuracy, Dapo, Filter, Predicate, Spread
from prorl_mq.schema.messages import SampleRecord
from prorl_mq.schema.task_schema import nearest

GROUP = "prorl_mq.filters"
RIGHT_ABOVE = 0.5
PATIENCE_S = 10.0  # for a user's own filter
STUCK = 4  # calls of one filter that have not returned; then it is not called again


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
    if dapo.early_drop is not None and not isinstance(dapo.filter, Spread):
        raise InvalidBatch("early_drop knows the chance of a spread alone: use the spread filter, or leave it out")


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


async def judge(rule: Filter, candidate: Candidate) -> Filtered:
    """Raises `FilterFailed`. A user's filter runs in a thread of its own and may take ten seconds."""
    if isinstance(rule, Predicate):
        if _stuck[rule.name] >= STUCK:
            raise FilterFailed(f"the filter {rule.name!r} hangs in {STUCK} threads: repair it, then restart the API")
        try:
            async with asyncio.timeout(PATIENCE_S):
                kept = await _in_thread(rule, candidate)
        except TimeoutError:
            _stuck[rule.name] += 1
            raise FilterFailed(f"the filter {rule.name!r} took longer than {PATIENCE_S:.0f} s") from None
        except Exception as error:
            raise FilterFailed(f"the filter {rule.name!r} raised {type(error).__name__}: {error}"[:500]) from error
    else:
        kept = keeps(rule, candidate)
    return Filtered.KEPT if kept else sort(candidate.rewards, rule.right_above if isinstance(rule, Accuracy) else None)


async def _in_thread(rule: Predicate, candidate: Candidate) -> bool:
    """A call that may never return: in a thread that nothing waits for at the end, and not in the loop's pool."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bool] = loop.create_future()

    def tell(kept: bool | None, error: Exception | None) -> None:
        if answer.cancelled():  # it was given up
            _stuck[rule.name] -= 1
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(bool(kept))

    def call() -> None:
        kept, error = None, None
        try:
            kept = keeps(rule, candidate)
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, kept, error)

    threading.Thread(target=call, name=f"filter {rule.name}", daemon=True).start()
    return await answer


def sort(rewards: Sequence[float], right_above: float | None = None) -> Filtered:
    """Which way a group is uninformative. Right is a reward above one half, unless the filter says otherwise."""
    right = [reward > (RIGHT_ABOVE if right_above is None else right_above) for reward in rewards]
    if not right:
        return Filtered.MIXED
    return Filtered.RIGHT if all(right) else Filtered.MIXED if any(right) else Filtered.WRONG


_stuck: Counter[str] = Counter()  # calls of each filter that were given up and have not returned, in this process


@cache
def _load(name: str) -> Keep:
    [found] = entry_points(group=GROUP, name=name)
    loaded: Keep = found.load()
    return loaded
