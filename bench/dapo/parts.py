"""The parts of the benchmark: what each runs, and the table that it prints."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import report
from bench.dapo import agreement as agreeing
from bench.dapo import filling as filled
from bench.dapo.modes import MODES
from bench.report import Goal, goal
from prorl_mq import server

AGREED = [name for name, mode in MODES.items() if not mode.restart]


class Part(NamedTuple):
    """What a part found."""

    text: str
    goals: Mapping[str, Goal]
    rows: Sequence[Mapping[str, Any]]


async def agreement(quick: bool) -> Part:
    """Whether the simulation is the real queue."""
    seeds = range(1, 2 if quick else 4)
    cases = [agreeing.Case(mode=mode, seed=seed, prompts=40) for mode in AGREED for seed in seeds]
    rows = []
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        async with server.running(Path(name)) as settings:
            for case in cases:
                measured, simulated = await agreeing.real(case, settings), await agreeing.simulated(case)
                accepted = sum(map(len, measured.accepted))
                same = measured == simulated
                rows.append({"case": case.mode, "round": case.seed, "accepted": accepted, "same": same})
    differ = sum(not row["same"] for row in rows)
    text = f"{len(rows)} runs through the real queue on a virtual clock, each also simulated"
    return Part(text, {"runs whose simulation differs from the real queue": goal(differ, "== 0")}, rows)


async def filling(quick: bool) -> Part:
    """Time and waste."""
    oversamples = (1.5,) if quick else (1.5, 3.0)
    rows = [row for seed in range(1, 3 if quick else 9) for row in await filled.run_seed(seed, oversamples)]
    columns = ("batch_s", "waste", "stopped", "carried")
    lines = [
        [case, *(report.cell(fields.get(column), with_range=True) for column in columns)]
        for case, fields in report.summarise(rows).items()
    ]
    head = ["case", "seconds a batch", "waste", "stopped for nothing", "groups carried"]
    return Part(report.table(head, lines), filled.judge(rows, oversamples[0]), rows)
