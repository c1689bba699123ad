"""What the queue has to reach, judged from the rows of all rounds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.queue.cases import FLOOR, OURS, WATCHED
from bench.queue.chains import LIBRARIES
from bench.report import Goal, goal, ratios, summarise

Rows = Sequence[Mapping[str, Any]]


def fastest_library(rows: Rows) -> str | None:
    """The library with the highest median of jobs/s."""
    medians = {
        case: fields["jobs_s"].median
        for case, fields in summarise(rows).items()
        if case in LIBRARIES and "jobs_s" in fields
    }
    return max(medians, key=lambda case: medians[case]) if medians else None


def ratio(rows: Rows, field: str, above: str, below: str | None) -> float | None:
    """The median over the rounds of the ratio within a round."""
    found = ratios(rows, field, above, below) if below else []
    return statistics.median(found) if found else None


def median(rows: Rows, *fields: str) -> float | None:
    """The median over the rounds of the sum of our fields."""
    sums = [
        sum(row[field] for field in fields) for row in rows if row["case"] == OURS and all(f in row for f in fields)
    ]
    return statistics.median(sums) if sums else None


def judge(rows: Rows) -> dict[str, Goal]:
    fastest = fastest_library(rows)
    errors = [str(row["error"]) for row in rows if row["case"] == OURS and "error" in row]
    missing = errors[0] if errors else ""
    over_library = ratio(rows, "jobs_s", OURS, fastest)
    figures = {
        "jobs/s, ours over the floor": (ratio(rows, "jobs_s", OURS, FLOOR), ">= 0.35"),
        "jobs/s, ours with 64 viewers over without": (ratio(rows, "jobs_s", WATCHED, OURS), ">= 0.97"),
        "CPU of workers, µs a job": (median(rows, "worker_us"), "<= 80"),
        "CPU of the API, µs a job": (median(rows, "api_us"), "<= 20"),
        "CPU of Redis, µs a job, submission included": (median(rows, "redis_us", "submit_redis_us"), "<= 60"),
        "submit to the last handler of a lone job, p50, ms": (median(rows, "latency_p50_ms"), "<= 2"),
        "POST to the record of a lone job in the client's hands, p50, ms": (median(rows, "record_p50_ms"), "<= 2"),
        "the same, p99, ms": (median(rows, "record_p99_ms"), "<= 4"),
        "CPU of our busiest idle worker, % of a core": (median(rows, "idle_worker_pct"), "< 1"),
    }
    over = goal(over_library, ">= 5", missing or f"the fastest is {fastest}")
    return {
        "jobs/s, ours over the fastest library": over,
        **{name: goal(value, wanted, missing) for name, (value, wanted) in figures.items()},
    }
