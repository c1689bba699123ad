"""What sandboxes have to reach, judged from the cases of all rounds."""

import statistics
from collections.abc import Mapping, Sequence

from bench import measure, report
from bench.report import Goal, goal
from bench.sandbox import bash, cells, starts
from bench.sandbox.churn import Churn
from bench.sandbox.rounds import Found, case_of

MIN_SAMPLES_FOR_P99 = 30  # with fewer it would be the maximum by another name
BASH, CELLS, COLD = "apptainer: our bash", "apptainer: our cells", "apptainer: ours, cold"
WARM, BARE = "apptainer: ours, warm", "apptainer: exec true, no session"
BUBBLEWRAP_COLD = "bubblewrap: ours, cold"
INSTANCE = "apptainer: instance"


def p50_ms(found: Found, case: str) -> float | None:
    """The median over the rounds of the median of each."""
    medians = [float(row["p50_ms"]) for row in found.rows if row["case"] == case]
    return statistics.median(medians) if medians else None


def p99_ms(found: Found, case: str) -> float | None:
    """Over the samples of all rounds."""
    seconds = found.seconds.get(case, [])
    return 1e3 * measure.percentile(seconds, 0.99) if len(seconds) >= MIN_SAMPLES_FOR_P99 else None


def times(found: Found, case: str, ours: str) -> float | None:
    """The median over the rounds of the ratio within a round."""
    ratios = report.ratios(found.rows, "p50_ms", case, ours)
    return statistics.median(ratios) if ratios else None


def judge(found: Found, churns: Sequence[Churn]) -> dict[str, Goal]:
    command, cell = case_of(bash.QUANTITY, BASH), case_of(cells.QUANTITY, CELLS)
    cold, warm, bare = (case_of(starts.READY, name) for name in (COLD, WARM, BARE))
    bubblewrap = case_of(starts.READY, BUBBLEWRAP_COLD)
    missing = {name: found.errors.get(name, "") for name in (BASH, CELLS, COLD, WARM, BARE, BUBBLEWRAP_COLD)}
    stop = p99_ms(found, case_of(starts.STOP, COLD))
    instead = p50_ms(found, case_of(starts.STOP, INSTANCE))
    goals = {
        "bash true, Apptainer, p50 ms": goal(p50_ms(found, command), "<= 0.2", missing[BASH]),
        "bash true, Apptainer, p99 ms": goal(p99_ms(found, command), "<= 0.6", missing[BASH]),
        "IPython 1+1, Apptainer, p50 ms": goal(p50_ms(found, cell), "<= 0.4", missing[CELLS]),
        "ready from the warm pool, p50 ms": goal(
            p50_ms(found, warm), "<= 10", missing[WARM] or beside("cold", p50_ms(found, cold))
        ),
        "cold start over a bare `exec true`, Apptainer": goal(
            times(found, cold, bare), "<= 1.15", missing[COLD] or missing[BARE]
        ),
        "cold start, bubblewrap, p50 ms": goal(p50_ms(found, bubblewrap), "<= 25", missing[BUBBLEWRAP_COLD]),
        "stop confirmed, p99 ms": goal(stop, "<= 20", missing[COLD] or beside("`instance stop`", instead)),
    }
    return goals | {f"left behind by {each.sandboxes} starts and stops, {each.kind}": leaks(each) for each in churns}


def beside(what: str, value_ms: float | None) -> str:
    return "" if value_ms is None else f"{what}: {report.figure(value_ms)} ms"


def leaks(churn: Churn) -> Goal:
    counts: Mapping[str, int] = {
        "processes": churn.left_processes, "mounts": churn.left_mounts, "files": churn.left_files,
        "descriptors": churn.left_descriptors,
    }  # fmt: skip
    left = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return goal(churn.left, "== 0", left)
