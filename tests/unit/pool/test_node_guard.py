"""Whether a node is shut by the starts of its sandboxes: pure, so each rule is looked at alone."""

import pytest

from prorl_mq.rules.node_guard import BACK_OFF_S, FAILURES, OF_THE_NODE, Starts, failed

NOW = 100.0


def after(*images: str) -> Starts:
    now = Starts()
    for image in images:
        now = failed(now, image, NOW)
    return now


@pytest.mark.parametrize(
    ("images", "shut"),
    [
        (("a", "b"), False),
        (("a", "b", "c"), True),
        (("a", "a", "b"), True),
        (("a",) * 50, False),  # one image: it may be to blame
        (("a", "a", OF_THE_NODE), True),
        ((OF_THE_NODE,) * FAILURES, True),
    ],
)
def test_a_node_is_shut_by_failures_in_a_row_that_one_image_does_not_explain(
    images: tuple[str, ...], shut: bool
) -> None:
    assert after(*images).shut is shut


def test_a_shut_node_takes_nothing_then_one_job_then_all() -> None:
    shut = after("a", "b", "c")
    later = NOW + BACK_OFF_S
    assert [shut.takes(4, 0, NOW), shut.takes(4, 0, later), shut.takes(4, 1, later)] == [0, 1, 0]
    assert Starts().takes(4, 3, NOW) == 4


def test_a_start_that_was_under_way_changes_nothing_and_a_failed_trial_doubles_the_back_off() -> None:
    shut = after("a", "b", "c")
    assert failed(shut, "d", NOW) == shut
    later = NOW + BACK_OFF_S
    assert failed(shut, "d", later).until_s == later + 2 * BACK_OFF_S
