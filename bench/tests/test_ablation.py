"""The parts of the ablation that could make its figures wrong."""

import asyncio
from pathlib import Path

import pytest

from bench.ablation.__main__ import goals, summary
from bench.ablation.gate import Gate, make_gate
from bench.ablation.variants import VARIANTS, WHOLE

pytestmark = pytest.mark.anyio


async def test_a_gate_lets_in_as_many_as_it_has_places_whichever_process_left(tmp_path: Path) -> None:
    """Two openings of one pipe are what two processes have."""
    inside, other = make_gate(tmp_path / "gate", 2), Gate(str(tmp_path / "gate"))
    try:
        await inside.enter()
        await other.enter()
        third = asyncio.create_task(inside.enter())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not third.done()
        other.leave()
        async with asyncio.timeout(30):
            await third
    finally:
        inside.close()
        other.close()


def test_shares_are_of_the_same_round() -> None:
    """A machine that is twice as slow in one round changes no share."""
    speed = {0: 10.0, 1: 5.0}
    rows = [
        {"case": case, "round": number, "jobs_s": jobs_s * (1.0 if case == WHOLE else 0.8)}
        for number, jobs_s in speed.items()
        for case in VARIANTS
    ]
    assert {goal.value for goal in goals(rows).values()} == {0.8}
    assert all(goal.met for goal in goals(rows).values())
    assert summary(rows).count("0.8 (0.8..0.8)") == len(VARIANTS) - 1
