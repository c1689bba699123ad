"""python -m bench.projector: the mirror for rq-dashboard: its cost, its lag, and its pages after 100,000 jobs."""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench import measure, report
from bench.projector import parts
from bench.redis_server import private_server
from bench.report import Goal

COLUMNS = ("jobs_s", "worker_us", "redis_us", "commands", "projector_us", "projector_after_us", "caught_up_s")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.projector", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer jobs and rounds: a look, no verdict")
    return parser.parse_args()


def judge(rows: Sequence[Mapping[str, Any]]) -> dict[str, Goal]:
    ratios = report.ratios(rows, "jobs_s", "with", "without")
    cost = [row for row in rows if row["case"] == "cost"]
    commands = statistics.median(row["commands"] for row in cost)
    projector_ms = [row["projector_us"] / 1e3 for row in cost]
    return {
        "throughput with it over without": report.goal(statistics.median(ratios), ">= 0.97", spread(ratios)),
        "Redis commands a job": report.goal(commands, "<= 15", "nothing falls into one batch"),
        "projector's CPU ms a job": report.goal(
            statistics.median(projector_ms), "<= 0.3", f"the same; {spread(projector_ms)}"
        ),
    }


def spread(values: Sequence[float]) -> str:
    return f"{len(values)} rounds, {min(values):.3f} to {max(values):.3f}"


def main() -> int:
    quick = arguments().quick
    rounds, jobs, many = (2, 4_000, 10_000) if quick else (7, 40_000, 100_000)
    machine, began = measure.describe_machine(), time.monotonic()
    rows: list[dict[str, Any]] = []
    with private_server() as (server, scratch):
        version = server.version()
        for number in range(rounds):
            for mirrored in (False, True) if number % 2 else (True, False):
                print(f"round {number + 1} of {rounds}, mirrored {mirrored}", file=sys.stderr, flush=True)
                row = parts.stages(server, scratch, jobs, mirrored=mirrored, to_the_end=not number)
                rows.append({**row, "round": number})
        for name, times, part in (
            ("cost", rounds, lambda: parts.cost(server, scratch, 2_000)),
            ("lag", 1, lambda: parts.lag(server, scratch, 5.0 if quick else 20.0)),
            ("pages", 1, lambda: parts.pages(server, scratch, many, 5)),
        ):
            for number in range(times):
                print(f"{name}, {number + 1} of {times}", file=sys.stderr, flush=True)
                rows.append({**part(), "round": number})
    summary = report.summarise([row for row in rows if row["case"] in {"with", "without"}])
    lines = [
        [case, *(report.cell(fields.get(each), with_range=True) for each in COLUMNS)]
        for case, fields in summary.items()
    ]
    print(report.table(["case", *COLUMNS], lines))
    for row in [row for row in rows if row["case"] not in summary]:
        print({name: report.significant(value) if isinstance(value, float) else value for name, value in row.items()})
    goals = judge(rows)
    print(report.goal_lines(goals))
    path = report.write("projector", goals, {
        "machine": {**machine, "load_at_end": measure.load()},
        "versions": {"server": version, **measure.versions(("prorl-mq", "rq", "rq-dashboard", "redis", "a2wsgi"))},
        "settings": {"quick": quick, "rounds": rounds, "jobs": jobs, "seconds": round(time.monotonic() - began)},
        "cases": summary,
        "rounds": rows,
    })  # fmt: skip
    print(f"{path}; {time.monotonic() - began:.0f} s, load {measure.load()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
