"""Rules of routing beside one another on simulated backends, generated sessions or recorded ones.

python -m bench.routing [--trace FILE] [--quick]
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench import measure, report
from bench.routing.cases import (
    CAPS,
    FIELDS,
    SEEDS,
    SLOTS,
    UNTIL_S,
    WARM_UP_S,
    adversaries,
    compared,
    simulate,
    slow_tools,
)
from bench.routing.workload import MIXES, TraceUnread, recorded

ADVERSARIES: Final = 100
SPIRAL: Final = 0.95  # of sticky's goodput on the same trace: whoever falls below has made things worse


def goals(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, report.Goal]:
    """Medians over the seeds, each against what it is compared with on the same seed."""
    by_seed: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        kind, _, case = row["case"].partition(": ")
        if kind == name:
            by_seed.setdefault(row["round"], {})[case] = row
    best = {
        seed: max((found[f"sticky, cap {cap}"] for cap in CAPS), key=lambda each: each["tokens_s"])
        for seed, found in by_seed.items()
    }
    judged: dict[str, report.Goal] = {}
    for slots in SLOTS:
        ours = {seed: found[f"room, {slots} slots"] for seed, found in by_seed.items()}
        over = [each["tokens_s"] / by_seed[seed][f"sticky, {slots} slots"]["tokens_s"] for seed, each in ours.items()]
        cap = [each["tokens_s"] / best[seed]["tokens_s"] for seed, each in ours.items()]
        hits = [each["hits"] - best[seed]["hits"] for seed, each in ours.items()]
        length = [abs(each["length"] - 1) for each in ours.values()]
        judged |= {
            f"{name}, {slots} slots: goodput over sticky's": report.goal(
                statistics.median(over), ">= 1.3", _range(over)
            ),
            f"{name}, {slots} slots: goodput over the best cap's": report.goal(
                statistics.median(cap), ">= 0.9", _range(cap)
            ),
            f"{name}, {slots} slots: hits above the best cap's": report.goal(
                statistics.median(hits), ">= 0", _range(hits)
            ),
            f"{name}, {slots} slots: bias of lengths": report.goal(
                statistics.median(length), "<= 0.05", _range(length)
            ),
        }
    return judged


def spirals(rows: Sequence[dict[str, Any]]) -> dict[str, report.Goal]:
    by_trace: dict[int, dict[str, float]] = {}
    for row in rows:
        rule, _, trace = row["case"].partition(", trace ")
        if trace:
            by_trace.setdefault(int(trace), {})[rule] = row["tokens_s"]
    over = [each["room"] / each["sticky"] for each in by_trace.values() if len(each) > 1]
    if not over:
        return {}
    spread = f"median {statistics.median(over):.2f}, {_range(over)} of sticky's goodput, {len(over)} traces"
    return {"adversaries: traces with a spiral": report.goal(sum(each < SPIRAL for each in over), "== 0", spread)}


def slowed(rows: Sequence[dict[str, Any]]) -> dict[str, report.Goal]:
    found = {row["case"]: row["tokens_s"] for row in rows}
    over = [found[name] / found[name.replace(": room", ": sticky")] for name in found if name.endswith(": room")]
    return {"slow tools: goodput over sticky's": report.goal(min(over), f">= {SPIRAL}", _range(over))} if over else {}


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3g}..{max(values):.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.routing", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed and mix, ten adversaries")
    parser.add_argument("--trace", type=Path, help="a file of `prorl-mq record`, in place of generated sessions")
    parser.add_argument("--mixes", nargs="*", default=["agents"], choices=MIXES, help="kinds of generated sessions")
    parser.add_argument("--adversaries", type=int, default=ADVERSARIES, help="traces that are made to hurt")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    started, seeds = time.monotonic(), 1 if options.quick else SEEDS
    kinds = ["recorded"] if options.trace else options.mixes
    try:
        if options.trace:
            recorded(options.trace)
    except (TraceUnread, OSError) as error:
        parser.error(str(error))
    cases = [case for kind in kinds for case in compared(kind, seeds, MIXES.get(kind), options.trace)]
    cases += [] if options.quick else slow_tools()
    cases += adversaries(10 if options.quick else options.adversaries)
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for row in pool.imap_unordered(simulate, cases):
            rows.append(row)
            print(
                f"{len(rows)}/{len(cases)} {row['case']}: {row['tokens_s']:.0f} tokens/s", file=sys.stderr, flush=True
            )
    judged = {name: each for kind in kinds for name, each in goals(kind, rows).items()} | spirals(rows) | slowed(rows)
    summary = report.summarise([row for row in rows if ", trace " not in row["case"]])
    lines = [[name, *(report.cell(found.get(field)) for field in FIELDS)] for name, found in sorted(summary.items())]
    print("All figures are simulated.")
    print(report.table(["case", *FIELDS], lines))
    print(report.goal_lines(judged))
    path = report.write("routing", judged, {
        "machine": {**measure.describe_machine(), "load_at_end": measure.load()},
        "settings": {
            "simulated": True, "until_s": UNTIL_S, "warm_up_s": WARM_UP_S, "backends": 4,
            "trace": str(options.trace or ""), "seconds": round(time.monotonic() - started),
        },
        "cases": summary,
        "rounds": rows,
    })  # fmt: skip
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
