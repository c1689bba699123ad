"""The benchmark of DAPO batches measures the service's own rules."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from bench.dapo import agreement, filling
from bench.dapo.agreement import Case
from prorl_mq.process import redis_server


@pytest.mark.parametrize("mode", ["carry", "ordered", "cancel"])
def test_the_simulation_does_what_the_real_queue_does(mode: str) -> None:
    """Else its many runs would say nothing of the service."""
    case = Case(mode=mode, seed=3)

    async def both() -> tuple[agreement.Seen, agreement.Seen]:
        with tempfile.TemporaryDirectory(prefix="pq") as name:
            async with redis_server.running(Path(name)) as settings:
                return await agreement.real(case, settings), await agreement.simulated(case)

    measured, simulated = asyncio.run(both())
    assert measured == simulated
    assert sum(map(len, measured.accepted)) >= 5


def test_every_goal_has_a_value_and_what_is_carried_over_is_not_wasted() -> None:
    rows = asyncio.run(filling.run_seed(1, (1.5,)))
    goals = filling.judge(rows, 1.5)
    assert len(goals) == len(filling.SIGMAS) * len(filling.OURS) * 4
    assert all(each.value is not None for each in goals.values())
    by_case = {row["case"]: row for row in rows}
    assert by_case[filling.name("carry", 1.0, 1.5)]["stopped"] == 0
    assert by_case[filling.name("cancel", 1.0, 1.5)]["stopped"] > 0.2
