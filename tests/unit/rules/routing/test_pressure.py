"""When a pool is short of room, and how much its sessions may take."""

import pytest

from prorl_mq.rules.routing import pressure
from prorl_mq.rules.routing.pressure import EngineLoad, Pressure, judge, needed

NOW_MS = 1_000_000.0


def told(at_ms: float = NOW_MS, **facts: float) -> EngineLoad:
    found = {"capacity": 1_000, "usage": 0.1, "running": 2, "waiting": 0, "preempted": 0, **facts}
    return EngineLoad(at_ms=at_ms, **found)  # type: ignore[arg-type]


@pytest.mark.parametrize(("usage", "lower"), [(0.3, False), (0.6, True)])
def test_requests_that_wait_for_something_else_than_room_lower_no_share(usage: float, lower: bool) -> None:
    """As for one of few sequences at once. The pool is short of room all the same, so that sessions may move."""
    now = Pressure()
    for second in range(0, 60, 2):
        now = judge(now, told(), told(NOW_MS + second * 1_000, waiting=3, usage=usage), 4)
    assert (now.share < pressure.SHARE, now.pressed) == (lower, True)


def test_a_pool_is_pressed_by_what_its_jobs_need_not_by_what_runs_now() -> None:
    """Two of twenty sessions run and hold a tenth: together they need the whole."""
    assert needed(told(), jobs=20) == pytest.approx(1.0)
    assert judge(Pressure(), None, told(), 20).pressed
    assert not judge(Pressure(), None, told(), 4).pressed
    assert not judge(Pressure(), None, told(running=0, usage=0.0), 50).pressed


def test_preemption_lowers_the_share_and_calm_raises_it_again() -> None:
    first = judge(Pressure(), None, told(), 4)
    lower = judge(first, told(), told(NOW_MS + 2_000, preempted=3), 4)
    assert (lower.share, lower.pressed) == (pytest.approx(0.95 * 0.9), True)
    same = judge(lower, told(preempted=3), told(NOW_MS + 4_000, preempted=5), 4)
    assert same.share == lower.share, "it was lowered two seconds ago"
    calm = judge(same, told(preempted=5), told(NOW_MS + 40_000, preempted=5), 4)
    assert calm.share == pytest.approx(lower.share + pressure.MORE)
    restarted = judge(calm, told(preempted=5), told(NOW_MS + 80_000, preempted=0), 4)
    assert restarted.share > calm.share, "a counter that begins again is no preemption"


def test_one_look_with_requests_that_wait_is_no_trouble_and_two_are() -> None:
    once = judge(Pressure(), None, told(waiting=1), 4)
    assert not once.pressed
    assert judge(once, told(waiting=1), told(NOW_MS + 2_000, waiting=1), 4).pressed


def test_the_ledger_is_put_away_after_a_minute_of_little() -> None:
    now = judge(Pressure(), None, told(), 20)
    for second in range(0, 120, 2):
        now = judge(now, told(), told(NOW_MS + second * 1_000, usage=0.05, running=2), 4)
        assert now.pressed is (second < 60)
