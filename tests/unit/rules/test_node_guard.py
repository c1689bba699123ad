"""Whether a node is shut by the starts of its sandboxes: pure, so each rule is looked at alone."""

from prorl_mq.rules.node_guard import BACK_OFF_S, FAILURES, Starts, failed, shut

NOW = 100.0


def test_failures_in_a_row_are_a_suspicion_and_shut_nothing() -> None:
    starts = [Starts()]
    for _ in range(FAILURES):
        starts.append(failed(starts[-1]))
    assert [each.suspect(NOW) for each in starts] == [False, False, False, True]
    assert not any(each.shut for each in starts)


def test_a_shut_node_takes_nothing_then_one_job_then_all() -> None:
    closed = shut(Starts(FAILURES), NOW)
    later = NOW + BACK_OFF_S
    assert [closed.takes(4, 0, NOW), closed.takes(4, 0, later), closed.takes(4, 1, later)] == [0, 1, 0]
    assert Starts().takes(4, 3, NOW) == 4


def test_a_start_that_was_under_way_is_no_suspicion_and_a_failed_trial_doubles_the_back_off() -> None:
    closed = shut(Starts(FAILURES), NOW)
    later = NOW + BACK_OFF_S
    assert (failed(closed).suspect(NOW), failed(closed).suspect(later)) == (False, True)
    assert shut(failed(closed), later).until_s == later + 2 * BACK_OFF_S
