"""RUN's clock: how long a turn may wait for room, so that faults have their own time."""

import pytest

from workers.inference.run_clock import LONGEST_PARK_S, Patience, RunClock, Stalled

pytestmark = pytest.mark.anyio


async def test_a_wait_for_room_leaves_half_of_what_a_turn_may_wait() -> None:
    clock = RunClock(100.0)
    assert (clock.stall_s, clock.park_s) == (50.0, 25.0)
    assert RunClock().park_s == RunClock(1e6).park_s == LONGEST_PARK_S


async def test_waits_for_room_leave_half_of_what_an_attempt_may_wait_however_many_there_are() -> None:
    """Each turn waits as long as it may: a fault after them is waited for all the same."""
    clock = RunClock(100.0)
    for _ in range(1_000):
        Patience(clock).lost(clock.park_s, Stalled("no room"))
    assert clock.stalled_s <= 50.0
    assert clock.park_s < 0.1
    assert clock.stall_s >= 50.0


async def test_each_wait_for_room_of_one_turn_leaves_half_of_its_patience() -> None:
    """As of a turn that continues again and again, while weights are announced."""
    patience = Patience(RunClock(100.0))
    waits = []
    for _ in range(20):
        waits.append(patience.park_s)
        patience.lost(waits[-1], Stalled("no room"))  # it would raise if no time were left
    assert waits[0] == 25.0
    assert sum(waits) < 50.0
