"""The pace of checkpoints: neither their time, nor their bytes, nor the calls that they stand for are without limit."""

from workers.stages.save_pace import BYTES_S, QUIET_CALLS_S, QUIET_TURNS, SPARSE, SavePace


def turn(pace: SavePace, at: float, calls_s: float = 0.01) -> bool:
    """A turn whose calls end at a moment."""
    pace.acts(at - calls_s)
    return pace.due(at)


def test_a_turn_that_may_have_changed_something_is_saved() -> None:
    pace = SavePace()
    assert turn(pace, 1.0)
    pace.saved(1.0, 1.001, 100, changed=True)
    assert turn(pace, 2.0)


def test_saving_takes_a_thirtieth_of_the_time() -> None:
    pace = SavePace()
    pace.saved(1.0, 1.5, 0, changed=True)
    assert not turn(pace, 1.5 + SPARSE * 0.5 - 0.1)
    assert turn(pace, 1.5 + SPARSE * 0.5 + 0.1)


def test_a_rollouts_bytes_have_a_rate() -> None:
    pace = SavePace()
    pace.saved(1.0, 1.0, 32 << 20, changed=True)
    assert not turn(pace, 1.0 + (32 << 20) / BYTES_S - 1)
    assert turn(pace, 1.0 + (32 << 20) / BYTES_S + 1)


def test_where_nothing_changes_it_is_not_saved_each_turn() -> None:
    pace = SavePace()
    saved = []
    for number in range(1, 31):
        if turn(pace, float(number)):
            saved.append(number)
            pace.saved(float(number), number + 0.001, 0, changed=False)
    assert saved == [1, *range(1 + QUIET_TURNS, 31, QUIET_TURNS)]


def test_calls_that_took_long_are_saved_at_once() -> None:
    """To make them again would take as long."""
    pace = SavePace()
    pace.saved(0.0, 0.001, 0, changed=False)
    assert not turn(pace, 1.0, QUIET_CALLS_S * 0.6)
    assert turn(pace, 3.0, QUIET_CALLS_S * 0.6)
