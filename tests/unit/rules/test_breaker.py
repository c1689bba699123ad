"""The breaker's transitions: pure, so each is looked at alone."""

from hypothesis import given
from hypothesis import strategies as st

from prorl_mq.rules import breaker
from prorl_mq.rules.breaker import (
    BACK_OFF_MS,
    CLOSED,
    FAILURES,
    LONGEST_BACK_OFF_MS,
    LONGEST_SHUT_MS,
    MISSES,
    Breaker,
    BreakerState,
)

NOW = 1_000_000
breakers = st.builds(
    Breaker,
    failures=st.integers(0, 20),
    openings=st.integers(0, 20),
    until_ms=st.integers(0, 2 * NOW),
    misses=st.integers(0, MISSES),
    trial=st.integers(0, 1),
)


def after_failures(count: int, now_ms: int = NOW) -> Breaker:
    now = CLOSED
    for _ in range(count):
        now = breaker.failed(now, now_ms, 0.0)
    return now


def test_failed_calls_in_a_row_open_it() -> None:
    assert after_failures(FAILURES - 1).state(NOW) is BreakerState.CLOSED
    opened = after_failures(FAILURES)
    assert (opened.state(NOW), opened.until_ms) == (BreakerState.OPEN, NOW + BACK_OFF_MS)


def test_a_success_between_them_begins_the_count_anew() -> None:
    assert breaker.succeeded(after_failures(FAILURES - 1)) == CLOSED


def test_calls_that_were_under_way_when_it_opened_do_not_lengthen_it() -> None:
    assert after_failures(FAILURES + 50) == after_failures(FAILURES)


def test_after_its_back_off_it_is_half_open_and_a_failed_trial_doubles_that() -> None:
    opened = after_failures(FAILURES)
    later = opened.until_ms
    assert opened.state(later) is BreakerState.HALF_OPEN
    again = breaker.failed(opened, later, 0.0)
    assert (again.state(later), again.until_ms) == (BreakerState.OPEN, later + 2 * BACK_OFF_MS)
    on_trial = opened._replace(until_ms=later + 10_000, trial=1)  # as `assign` leaves it
    assert breaker.failed(on_trial, later + 5, 0.0).until_ms == later + 5 + 2 * BACK_OFF_MS
    assert breaker.succeeded(on_trial) == CLOSED


def test_the_back_off_is_bounded_and_jittered() -> None:
    now, waits = CLOSED, []
    clock = NOW
    for _ in range(12):
        now = breaker.failed(now, clock, 0.0)
        waits.append(max(0, now.until_ms - clock))
        clock = max(clock, now.until_ms)
    assert waits[:6] == [0, 0, 1000, 2000, 4000, 8000]
    assert max(waits) == LONGEST_BACK_OFF_MS
    assert breaker.failed(after_failures(FAILURES - 1), NOW, 0.99).until_ms - NOW < 0.6 * BACK_OFF_MS


def test_missed_probes_shut_it_until_they_are_answered_again() -> None:
    now = CLOSED
    for count in range(1, MISSES + 1):
        now = breaker.missed(now, NOW)
        assert now.dead is (count == MISSES)
    assert now.state(NOW) is BreakerState.OPEN
    assert breaker.succeeded(now) == now, "a slow answer of before revives nothing"
    later = now.until_ms - 1
    assert breaker.missed(now, later).state(later + 1) is BreakerState.OPEN
    back = breaker.answered(now)
    assert not back.dead
    assert back.state(now.until_ms) is BreakerState.HALF_OPEN, "whether calls succeed is for a trial to show"


@given(breakers)
def test_its_text_says_all_of_it(made: Breaker) -> None:
    assert breaker.parse(made.text) == made


@given(breakers, st.integers(0, 2 * NOW), st.floats(0, 0.999))
def test_no_evidence_shuts_it_for_longer_than_the_longest_back_off(made: Breaker, now_ms: int, jitter: float) -> None:
    bound = max(made.until_ms, now_ms + LONGEST_BACK_OFF_MS)
    assert breaker.failed(made, now_ms, jitter).until_ms <= bound
    assert breaker.missed(made, now_ms).until_ms <= bound
    if made.state(now_ms) is BreakerState.OPEN and not made.trial:
        assert breaker.failed(made, now_ms, jitter) == made


def shared(failures: int, now_ms: int = NOW) -> Breaker:
    """The breaker of an image after so many failures in a row."""
    now = CLOSED
    for _ in range(failures):
        now = breaker.failed(now, now_ms, 0.0, breaker.SHARED)
    return now


def test_an_image_is_shut_by_its_twentieth_failure_and_one_job_tries_when_its_back_off_is_over() -> None:
    assert shared(19).state(NOW) is BreakerState.CLOSED
    opened = shared(20)
    assert breaker.let_through(opened, NOW) == opened
    later = opened.until_ms
    trying = breaker.let_through(opened, later)
    assert (trying.state(later), trying.trial) == (BreakerState.OPEN, 1)
    assert breaker.let_through(trying, later) == trying  # nobody else does
    assert breaker.failed(trying, later, 0.0, breaker.SHARED).until_ms == later + 2 * breaker.SHARED.back_off_ms
    assert breaker.put_back(trying, later).state(later) is BreakerState.HALF_OPEN


def test_a_job_that_tries_and_is_never_heard_of_again_keeps_nobody_for_longer_than_a_trial() -> None:
    opened = shared(20)
    trying = breaker.let_through(opened, opened.until_ms)
    assert trying.state(opened.until_ms + breaker.TRIAL_MS) is BreakerState.HALF_OPEN
    assert breaker.TRIAL_MS <= LONGEST_SHUT_MS  # else it would be taken for one of a wrong clock
