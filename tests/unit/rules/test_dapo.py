"""The pure rules of dynamic sampling."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_mq.rules import dapo_report, filters
from prorl_mq.rules.dapo import (
    BatchProgress,
    closing_reason,
    in_flight,
    rate,
    spread,
    standing,
    to_draw,
)
from prorl_mq.rules.filters import Candidate, Filtered
from prorl_mq.rules.records import leased_seconds
from prorl_mq.rules.rewards import advantages, statistics
from prorl_mq.schema.dapo import Accuracy, Dapo, Reservoir, Spread
from prorl_mq.schema.messages import Outcome, SampleRecord


def test_the_rate_begins_at_one_half_and_follows_what_is_seen() -> None:
    assert rate(0, 0) == 0.5
    assert rate(0, 92) == 0.04
    assert math.isclose(rate(900, 1_000), 0.9, abs_tol=0.005)


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        (BatchProgress(waiting=99), 64),  # 32 missing at a rate of one half
        (BatchProgress(accepted=8, filtered=24, waiting=99), 80),  # 24 missing at 12 of 40
        (BatchProgress(accepted=31, filtered=1, waiting=99), 2),  # one missing, and half a group more
        (BatchProgress(accepted=32, waiting=99), 0),
        (BatchProgress(accepted=20, parked=12, in_play=40, waiting=99), 0),  # the parked ones are enough
    ],
)
def test_in_flight_are_those_needed_over_the_rate(now: BatchProgress, wanted: int) -> None:
    assert in_flight(Dapo(target_groups=32, oversample=1.0), now) == wanted


def test_the_margin_and_the_limit() -> None:
    assert in_flight(Dapo(target_groups=4, oversample=1.5), BatchProgress(waiting=99)) == 12
    assert in_flight(Dapo(target_groups=4, oversample=1.5, max_groups=10), BatchProgress(in_play=3, drawn=8)) == 5
    assert to_draw(Dapo(target_groups=4, oversample=1.5), BatchProgress(in_play=5, waiting=2)) == 2
    assert to_draw(Dapo(target_groups=4, oversample=1.0), BatchProgress(in_play=12, waiting=9)) == 0


@given(
    st.integers(1, 64), st.integers(0, 64), st.integers(0, 500), st.integers(0, 99), st.integers(0, 99),
    st.integers(0, 99), st.floats(1, 10), st.one_of(st.none(), st.integers(1, 99)),
)  # fmt: skip
def test_a_short_batch_is_never_left_without_work(
    target: int, accepted: int, filtered: int, in_play: int, waiting: int, drawn: int, over: float, most: int | None
) -> None:
    """As long as it may draw and there are prompts; and it never draws more than it may."""
    dapo = Dapo(target_groups=target, oversample=over, max_groups=most)
    now = BatchProgress(accepted=accepted, filtered=filtered, in_play=in_play, waiting=waiting, drawn=drawn)
    count = to_draw(dapo, now)
    assert 0 <= count <= waiting
    assert most is None or count <= max(0, most - drawn)
    may = accepted < target and waiting > 0 and (most is None or drawn < most)
    assert not may or in_play + count > 0
    if accepted >= target:
        assert (count, closing_reason(dapo, now)) == (0, "target")


def test_a_batch_is_exhausted_when_nothing_is_left_that_could_count() -> None:
    dapo = Dapo(target_groups=2)
    assert closing_reason(dapo, BatchProgress()) == "exhausted"
    assert closing_reason(dapo, BatchProgress(arrived=False)) is None
    assert closing_reason(dapo, BatchProgress(in_play=1)) is None
    assert closing_reason(dapo, BatchProgress(waiting=1)) is None
    assert closing_reason(Dapo(target_groups=2, max_groups=5), BatchProgress(waiting=1, drawn=5)) == "exhausted"
    assert closing_reason(Dapo(target_groups=2, reservoir=Reservoir.RUN), BatchProgress()) is None


@given(st.lists(st.booleans(), max_size=7), st.integers(1, 4), st.randoms(use_true_random=False))
def test_whatever_the_order_of_ends_the_first_groups_in_the_order_of_draws_count(
    good: list[bool], target: int, rng: random.Random
) -> None:
    """And whatever is rejected on the way could indeed not count, whatever the open groups would have become."""
    first = [place for place, flag in enumerate(good) if flag][:target]
    ends = list(range(len(good)))
    rng.shuffle(ends)
    playing, ended, accepted = set(ends), set[int](), list[int]()
    for place in ends:
        if place not in playing:
            continue
        if good[place]:
            ended.add(place)
        else:
            playing.discard(place)
        found = standing([(one, one in ended) for one in sorted(playing)], accepted=len(accepted), target=target)
        accepted += found.accept
        playing -= {*found.accept, *found.reject}
        assert set(found.reject).isdisjoint(first)
        assert set(found.accept) <= set(first)
    assert sorted(accepted) == first


def candidate(*rewards: float) -> Candidate:
    return Candidate(task_id="t", data_source="d", rewards=rewards, samples=[])


def test_filters() -> None:
    assert not filters.keeps(Spread(), candidate(0.5, 0.5))
    assert filters.keeps(Spread(), candidate(0.5, 0.6))
    assert not filters.keeps(Spread(above=0.2), candidate(0.5, 0.6))
    assert not filters.keeps(Spread(), candidate())
    assert filters.keeps(Accuracy(least=0.5, most=0.5), candidate(1, 0))
    assert not filters.keeps(Accuracy(least=0.5, most=0.5), candidate(1, 0, 0))
    assert filters.keeps(Accuracy(least=0.5, right_above=-1), candidate(1, 0, 0))
    assert [filters.sort(each) for each in ([1.0, 1.0], [0.0, 0.2], [1.0, 0.0], [])] == [
        Filtered.RIGHT, Filtered.WRONG, Filtered.MIXED, Filtered.MIXED,
    ]  # fmt: skip


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9), st.floats(-10, 10))
def test_two_samples_prove_a_spread_for_ever(rewards: list[float], more: float) -> None:
    assert spread([*rewards, more]) >= spread(rewards)


def sample(index: int, reward: float | None, outcome: Outcome = Outcome.COMPLETED) -> SampleRecord:
    return SampleRecord(job_id=f"r:g:{index}", index=index, outcome=outcome, reward=reward)


def test_rewards_of_samples_that_do_not_count_change_nothing() -> None:
    samples = [sample(0, 1.0), sample(1, None, Outcome.INFRA_ERROR), sample(2, 0.0), sample(3, None)]
    stats = statistics([1.0, 0.0])
    assert stats is not None
    assert (stats.count, stats.mean, stats.std, stats.min, stats.max) == (2, 0.5, 0.5, 0.0, 1.0)
    assert advantages(samples, stats) == [1.0, None, -1.0, None]
    assert advantages([sample(0, 2.0)], statistics([2.0])) == [0.0]
    assert statistics([]) is None
    assert statistics([1e308, -1e308, 1e308]) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=16))
def test_advantages_have_mean_zero_and_deviation_one_or_are_all_zero(rewards: list[float]) -> None:
    stats = statistics(rewards)
    made = [each for each in advantages([sample(i, each) for i, each in enumerate(rewards)], stats) if each is not None]
    assert len(made) == len(rewards)
    if stats is not None and stats.std > 1e-3:
        assert math.isclose(sum(made), 0.0, abs_tol=1e-3)
        assert math.isclose(sum(each**2 for each in made) / len(made), 1.0, rel_tol=1e-3)


def test_the_time_under_lease_is_read_off_the_time_line() -> None:
    """Lost attempts and the way to a confirmed stop count; waiting does not."""
    events = [
        (0, "admit"), (100, "claim"), (300, "advance"), (900, "claim"), (1_000, "reap"), (2_000, "claim"),
        (2_050, "cancel"), (2_100, "cancelled"),
    ]  # fmt: skip
    line = "".join(f"{1_700_000_000_000 + ms}\t{event}\t\t\t\t\n" for ms, event in events)
    assert leased_seconds(line) == pytest.approx(0.2 + 0.1 + 0.1)


def test_the_waste_is_what_is_in_no_accepted_groups_counting_samples() -> None:
    counters: dict[str, int] = {}
    groups = [("accepted", 6.0, [(1.0, 5)]), ("accepted", 4.0, []), ("filtered_right", 5.0, []), ("cancelled", 5.0, [])]
    for kind, seconds, lost in groups:
        for name, more in dapo_report.tally(kind, seconds=seconds, tokens=10, lost=lost):
            counters[name] = counters.get(name, 0) + more
    made = dapo_report.report("r", "b", Dapo(target_groups=2), "target", counters, seconds=60.0)
    assert made.waste_ratio == pytest.approx(1 - 9 / 20)
    assert made.acceptance_rate == pytest.approx(2 / 3)
    assert (made.accepted.count, made.accepted.tokens, made.refilled.count, made.refilled.seconds) == (2, 20, 1, 1.0)
    assert made.bias == []
