"""Shares of memory: what may begin, and what says that nothing may."""

import pytest

from prorl_mq.rules import fair_share, quotas
from prorl_mq.rules.memory import FIRST_BYTES, Memory, expected, log_room, room, unacked_limit
from prorl_mq.rules.quotas import Usage
from prorl_mq.schema.ids import GroupRef, RunRef
from prorl_mq.schema.items import Wanted
from prorl_mq.schema.settings import Book, RunSettings

RUN = RunRef("t:r")
PATH = ("t", "r", "train")
MIB = 1 << 20


def usage(used: int, *, jobs: int = 0) -> Usage:
    """One run whose samples store one MiB each, on a server of 100 MiB."""
    return Usage(jobs={RUN: jobs}, groups={}, bytes={RUN: 0}, sizes={RUN: MIB}, memory=Memory(used * MIB, 100 * MIB))


def chosen(now: Usage, *groups: Wanted) -> int:
    """How many of the groups of the run may go."""
    found = fair_share.share({PATH: groups}, {}, 1_000, {}, quotas.allowed(Book({}, {}), now))
    return sum(map(len, found.values()))


@pytest.mark.parametrize(
    ("used", "jobs", "goes"), [(0, 0, 4), (45, 20, 2), (5, 60, 2), (75, 0, 1), (80, 0, 0), (0, 85, 0)]
)
def test_groups_begin_while_what_they_and_the_jobs_in_flight_store_fits(used: int, jobs: int, goes: int) -> None:
    groups = [Wanted(GroupRef(f"t:r:{number}"), 0, 10, 1) for number in range(4)]
    assert chosen(usage(used, jobs=jobs), *groups) == goes


def test_a_refill_goes_though_no_group_may_begin() -> None:
    """Its group could not close without it, and nothing would ever be freed."""
    assert chosen(usage(99), Wanted(GroupRef("t:r:g"), 4, 2, 1)) == 1


def test_a_run_that_waits_for_memory_says_so_and_what_helps() -> None:
    now, group = usage(80, jobs=3), Wanted(GroupRef("t:r:g"), 0, 8, 1)
    why = quotas.why_held(Book({}, {}), now, quotas.allowed(Book({}, {}), now), RUN, group)
    assert why == (
        "Redis uses 80 of 100 MiB and what runs may store 3 MiB more; no group begins above 85%: acknowledge results, "
        "or give Redis more memory"
    )


def test_one_run_may_hold_a_quarter_of_the_memory_unless_it_says_otherwise() -> None:
    memory = Memory(0, 100 * MIB)
    assert unacked_limit(RunSettings(), memory) == 25 * MIB
    assert unacked_limit(RunSettings(max_unacked_bytes=7), memory) == 7
    assert unacked_limit(RunSettings(), Memory(0, 0)) == 4 << 30


def test_logs_of_turns_have_a_bound_where_redis_has_none_of_its_own() -> None:
    assert log_room(Memory(71, 100, 1000)) == -1
    assert log_room(Memory(71, 0, 100)) == -1
    assert log_room(Memory(71, 0)) is None, "a server that does not say what its host has"


def test_without_a_limit_nothing_waits_and_a_new_run_counts_with_a_first_guess() -> None:
    assert room(Memory(5, 0), 7) is None
    assert expected({RUN: 2, RunRef("t:new"): 3}, {RUN: 10}) == 20 + 3 * FIRST_BYTES
