"""The parts of the benchmark: what each runs, and the table that it prints."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import measure, plot, report
from bench.dapo import agreement as agreeing
from bench.dapo import bias as biased
from bench.dapo import cancelling
from bench.dapo import filling as filled
from bench.dapo.modes import MODES
from bench.report import Goal, goal
from prorl_mq.process import redis_server

UNBIASED = ("carry", "ordered")
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
        async with redis_server.running(Path(name)) as settings:
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
    goals = filled.judge(rows, oversamples[0])
    for oversample in oversamples[1:]:  # nothing is lost by more of it where the rest is carried over
        goals |= filled.judge(rows, oversample, ["carry"])
    return Part(report.table(head, lines), goals, rows)


async def bias(quick: bool) -> Part:
    """Who is accepted; the charts go to bench/out."""
    size = biased.Size(prompts=2_000 if quick else 20_000)
    other = biased.workload(1 + biased.REFERENCE_SEED, size)
    reference = biased.features(other, biased.everything(other, size))
    work, rows, shares = biased.workload(1, size), [], {}
    for mode in (*AGREED, filled.PRORL):
        selected = await biased.select(mode, work, size)
        found = biased.features(work, selected.accepted)
        shares[mode] = biased.shares(work, selected)
        for name in biased.FEATURES:
            compared = biased.compare(found[name], reference[name])
            rows.append({"case": mode, "round": 1, "feature": name, "accepted": len(found[name]), **compared._asdict()})
    _draw(rows, shares)
    detected = _detected(reference["length"], min(row["accepted"] for row in rows if row["case"] in UNBIASED))
    goals = {
        f"{mode}: least p of the tests for {', '.join(biased.FEATURES)}": goal(
            min(row["p"] for row in rows if row["case"] == mode), f">= {biased.SIGNIFICANCE}", detected
        )
        for mode in UNBIASED
    }
    head = ["accepted against waiting for everything", "groups", "shift, sd", "±", "KS distance", "p"]
    lines = [
        [f"{row['case']}: {row['feature']}", str(row["accepted"]), f"{row['shift']:+.3f}", f"{row['margin']:.3f}",
         f"{row['distance']:.4f}", f"{row['p']:.2g}"]
        for row in rows
    ]  # fmt: skip
    by_tenth = [[mode, *(f"{each:.2f}" for each in values)] for mode, values in shares.items()]
    tenths = report.table(["share accepted, by tenths of length", *map(str, range(1, 11))], by_tenth)
    return Part(f"{report.table(head, lines)}\n\n{tenths}", goals, rows)


def _detected(reference: Sequence[float], size: int) -> str:
    """The smallest shift that the test finds in 95 of 100 draws."""
    for shift in (0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.15, 0.2, 0.3):
        if biased.power(reference, size, shift, draws=100, seed=1) >= 0.95:
            return f"at {biased.SIGNIFICANCE} it finds a shift of {shift:g} sd in 95 of 100 draws"
    return "too small a sample to find a shift of 0.3 sd"


def _draw(rows: Sequence[Mapping[str, Any]], shares: Mapping[str, Sequence[float]]) -> None:
    points: dict[str, dict[str, plot.Point]] = {name: {} for name in biased.FEATURES}
    for row in rows:
        if row["case"] in AGREED:
            points[row["feature"]][row["case"]] = plot.Point(row["shift"], row["margin"])
    report.OUT.mkdir(exist_ok=True)
    title = "Accepted groups: shift of the mean against waiting for everything, in standard deviations"
    (report.OUT / "dapo_shift.svg").write_text(plot.dots(title, points, reach=0.6))
    title = "Share of informative groups that is accepted, over that of all"
    chart = plot.lines(title, "tenth of the groups by length (10: the longest)", shares, top=2.0)
    (report.OUT / "dapo_shares.svg").write_text(chart)


async def cancel(quick: bool) -> Part:
    """How long a cancel takes, in real sandboxes."""
    active = cancelling.room(40 if quick else 500)
    stops = await cancelling.measure(active, active // 3)
    goals, lines = {}, []
    for at_once, name in ((False, f"one by one, of {active} active jobs"), (True, f"{active - active // 3} at once")):
        for in_tool_call, place in ((True, "in a tool call"), (False, "in a request")):
            values = [float(each.ms) for each in stops if (each.at_once, each.in_tool_call) == (at_once, in_tool_call)]
            percentiles = [f"{measure.percentile(values, q):.0f}" for q in (0.5, 0.99, 1.0)]
            lines.append([f"{name}, {place}", str(len(values)), *percentiles])
        values = [float(each.ms) for each in stops if each.at_once is at_once]
        goals[f"cancel {name}: p50, ms"] = goal(measure.percentile(values, 0.5), "<= 20")
        goals[f"cancel {name}: p99, ms"] = goal(measure.percentile(values, 0.99), "<= 100")
    rows = [{"case": "at once" if each.at_once else "one by one", "round": 0, **each._asdict()} for each in stops]
    return Part(report.table(["cancelled", "jobs", "p50 ms", "p99 ms", "max ms"], lines), goals, rows)
