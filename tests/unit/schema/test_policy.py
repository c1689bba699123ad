"""Versions: integers are compared, labels are not, and unknown ones are not guessed."""

import pytest

from prorl_mq.schema.policy import Announced, number, staleness
from prorl_mq.schema.trajectory import Segment, Span, Trajectory
from tests.support.queue import spec
from workers.stages.staleness import TooStale, check, first_version, versions_of


@pytest.mark.parametrize(
    ("told", "expected"),
    [("7", 7), ("007", 7), ("default", None), ("step-7", None), ("", None), (None, None), ("-1", None), ("1e3", None),
     ("٧", None), ("9" * 19, 10**19 - 1), ("0" * 20, None), ("9" * 5_000, None)],
)  # fmt: skip
def test_only_decimal_digits_are_a_policy_version(told: str | None, expected: int | None) -> None:
    assert number(told) == expected


def test_staleness_is_never_negative_and_never_guessed() -> None:
    assert staleness(10, 7) == 3
    assert staleness(7, 10) == 0, "an older checkpoint was announced"
    assert staleness(None, 7) == staleness(7, None) == 0


def test_the_version_at_a_moment_is_the_last_one_announced_before_it() -> None:
    said = Announced(version=9, history=[(100, 7), (200, 8), (300, 9)])
    assert [said.version_at(at) for at in (100, 199, 200, 1_000)] == [7, 7, 8, 9]
    assert said.version_at(50) == 7, "before all that is remembered: no staler than it is known to be"
    assert Announced().version_at(50) is None


def test_a_label_lags_only_where_the_service_loads_the_weights() -> None:
    loaded, own = Announced(version=7, weights="/w/7"), Announced(version=7)
    assert [loaded.lags(told) for told in ("6", "7", "8", "default", None)] == [True, False, False, True, False]
    assert [own.lags(told) for told in ("6", "7", "8", "default", None)] == [True, False, False, False, False]


def test_only_the_strict_modes_hold_turns_back() -> None:
    assert [Announced(version=7, mode=mode).floor for mode in ("keep", "drain", "abort")] == [None, 7, 7]


def trajectory(version: tuple[str, str] | None) -> Trajectory:
    spans = [Span(start=0, end=1, backend="b", version=version), Span(start=1, end=2, backend="b", version=("9", "9"))]
    segment = Segment(prompt_ids=[1], response_ids=[2, 3], loss_mask=[1, 1], logprobs=[-1.0, -1.0], spans=spans)
    return Trajectory(segments=[segment], turns=[], stop_reason="answer")


def test_the_first_token_counts() -> None:
    assert first_version(trajectory(("5", "6")), 8) == 5
    assert first_version(trajectory(None), 8) == 8, "its backend tells nothing: what was announced when it ran"
    assert first_version(trajectory(("default", "default")), None) is None
    assert first_version(None, 8) == 8


def test_the_oldest_and_the_newest_version_are_of_all_tokens() -> None:
    assert versions_of(trajectory(("5", "12"))) == (5, 12), "each span has the version at its begin and at its end"
    assert versions_of(trajectory(("default", "7"))) == (7, 9)
    assert versions_of(trajectory(None)) == (9, 9)
    assert versions_of(Trajectory(segments=[], turns=[], stop_reason="cancelled")) is None


def test_a_batch_without_a_limit_is_never_too_stale() -> None:
    check(spec(), 100, 1, "at its end")
    check(spec(max_staleness=2), 9, 7, "at its end")
    with pytest.raises(TooStale, match="3 versions behind: 6 against the announced 9; max_staleness is 2"):
        check(spec(max_staleness=2), 9, 6, "at its end")
    with pytest.raises(TooStale):
        check(spec(max_staleness=0), 9, 8, "at its end")
