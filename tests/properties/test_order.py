"""The order of a backlog: priority is waiting time given in advance, so no group is overtaken without limit."""

from hypothesis import given
from hypothesis import strategies as st

from prorl_mq.rules.order import STEP_US, ahead_us, base, purpose_of
from prorl_mq.schema.messages import Purpose

times_us = st.integers(1_700_000_000_000_000, 4_100_000_000_000_000)  # until 2099
priorities = st.integers(-9, 9)


def score(purpose: Purpose, time_us: int, priority: int) -> float:
    """As `submit` computes it, in a double."""
    return float(base(purpose)) + float(time_us) - float(ahead_us(priority))


@given(st.sampled_from(Purpose), times_us, priorities)
def test_a_score_is_exact_and_tells_the_purpose(purpose: Purpose, time_us: int, priority: int) -> None:
    made = score(purpose, time_us, priority)
    assert int(made) == base(purpose) + time_us - ahead_us(priority)
    assert purpose_of(made) is purpose
    assert purpose_of(float(base(purpose))) is purpose
    assert base(purpose) < made


@given(times_us, priorities, priorities, st.integers(1, 20 * STEP_US))
def test_a_later_group_goes_first_only_within_ten_minutes_for_each_step_of_priority(
    time_us: int, priority: int, other: int, later_us: int
) -> None:
    overtakes = score(Purpose.TRAIN, time_us + later_us, other) < score(Purpose.TRAIN, time_us, priority)
    assert overtakes == (later_us < (other - priority) * STEP_US)
