"""Time to a full batch, and what was wasted on the way, in each mode and against its bounds."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.dapo import bounds
from bench.dapo.fleet import Fleet
from bench.dapo.modes import MODES, Mode, play
from bench.dapo.simulation import Simulation
from bench.dapo.workload import Workload
from bench.report import Goal, goal, ratios, significant, spread
from prorl_mq.schema.dapo import Surplus

TARGET, BATCHES, PROMPTS = 32, 4, 1_000
PRORL, SYNCHRONOUS = "cancel and restart", "synchronous"
OURS = ("carry", "ordered", "cancel")
SIGMAS = (0.5, 1.0, 1.5)


def name(case: str, sigma: float, oversample: float | None = None) -> str:
    return f"{case}, σ {sigma}" + ("" if oversample is None else f", oversample {oversample:g}")


async def run_mode(mode: Mode, work: Workload, oversample: float) -> dict[str, float]:
    """Seconds a batch, and shares of the slots' time: on filtered groups, and on work that was stopped for nothing."""
    simulation = Simulation(work, range(PROMPTS), restart=mode.restart)
    fleet = Fleet(simulation, work)
    full = await play(fleet, simulation, mode.dapo(TARGET, oversample), BATCHES)
    assert len(full) == BATCHES, "too few prompts"
    used = sum(work.seconds(*job, stage) for batch in simulation.accepted for job, stage in work.parts(batch))
    filtered = sum(work.seconds(*job, stage) for job, stage in work.parts(simulation.filtered))
    in_play = sum(fleet.spent[group] for group in simulation.playing)
    stopped = sum(fleet.spent.values()) - in_play - used - filtered
    total = used + filtered + stopped
    figures = {
        "batch_s": full[-1] / BATCHES,
        "waste": (filtered + stopped) / total,
        "stopped": max(0.0, round(stopped / total, 9)),
        "carried": len(simulation.playing),
    }
    if mode.surplus is Surplus.ORDERED:
        figures["oracle_s"] = await bounds.oracle_ordered(work, simulation.begun, TARGET) / BATCHES
    return figures


async def run_bounds(work: Workload) -> dict[str, dict[str, float]]:
    seconds, used = await bounds.synchronous(work, TARGET, BATCHES)
    kept = [group for group in range(used) if work.is_informative(group)]
    every = sum(work.seconds(*job, stage) for job, stage in work.parts(range(used)))
    wanted = sum(work.seconds(*job, stage) for job, stage in work.parts(kept)) * TARGET * BATCHES / len(kept)
    found = {
        "carry": await bounds.oracle_carry(work, TARGET, BATCHES, range(PROMPTS)),
        "cancel": await bounds.oracle_cancel(work, TARGET, BATCHES, range(PROMPTS)),
    }
    rows = {f"oracle of {mode}": {"batch_s": total / BATCHES} for mode, total in found.items()}
    return rows | {SYNCHRONOUS: {"batch_s": seconds / BATCHES, "waste": 1 - wanted / every}}


async def run_seed(seed: int, oversamples: Sequence[float]) -> list[dict[str, Any]]:
    """One row for each case."""
    rows: list[dict[str, Any]] = []
    for sigma in SIGMAS:
        work = Workload(seed, sigma=sigma)
        limits = await run_bounds(work)
        rows.append({"case": name(SYNCHRONOUS, sigma), "round": seed, **limits.pop(SYNCHRONOUS)})
        for oversample in oversamples:
            for case in (*OURS, PRORL):
                figures = await run_mode(MODES[case], work, oversample)
                if "oracle_s" in figures:
                    limits[f"oracle of {case}"] = {"batch_s": figures.pop("oracle_s")}
                rows.append({"case": name(case, sigma, oversample), "round": seed, **figures})
            for case, bound in limits.items():
                rows.append({"case": name(case, sigma, oversample), "round": seed, **bound})
    return rows


def judge(rows: Sequence[Mapping[str, Any]], oversample: float, cases: Sequence[str] = OURS) -> dict[str, Goal]:
    """Medians over the seeds of the ratios within a seed."""
    goals = {}
    for sigma in SIGMAS:
        for case in cases:
            mine, theirs = name(case, sigma, oversample), name(PRORL, sigma, oversample)
            wanted = {
                "time over its oracle": ("batch_s", mine, name(f"oracle of {case}", sigma, oversample), "<= 1.1"),
                "time of synchronous batches over it": ("batch_s", name(SYNCHRONOUS, sigma), mine, ">= 1.5"),
                "stopped work over that of cancel and restart": ("stopped", mine, theirs, "<= 0.5"),
                "all waste, filtered groups too, over that of cancel and restart": ("waste", mine, theirs, "<= 0.5"),
            }
            for what, (field, above, below, aim) in wanted.items():
                found = spread(ratios(rows, field, above, below))
                note = f"{significant(found.min, 3):g} to {significant(found.max, 3):g} over {found.rounds} seeds"
                goals[f"{mine}: {what}"] = goal(found.median, aim, note)
    return goals
