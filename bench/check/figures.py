"""Short runs of `bench.queue` and `bench.sandbox`, reduced to figures that another machine gives as well.

CPU is divided by that of the floor in the same round: the hand-written worker does the same kind of work on the same
cores at nearly the same time.
"""

import asyncio
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench import report
from bench.check.release import Figures, Measured
from bench.queue.cases import FLOOR, OURS, all_cases
from bench.queue.rounds import Bench, run_case
from bench.queue.system import Case
from bench.redis_server import private_server
from bench.sandbox import calls
from bench.sandbox.__main__ import private_place
from bench.sandbox.contender import Setting

JOBS: Mapping[str, int] = {FLOOR: 30_000, OURS: 12_000}
ROUNDS, OF_COUNTS = 5, 3  # CPU varies more than what one job asks
LONE_JOBS, IDLE_S = 100, 4.0
KINDS = ("apptainer", "bubblewrap")
Row = Mapping[str, Any]


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def short(case: Case, number: int) -> Case:
    measures = case.measures if case.name == OURS and number < OF_COUNTS else ("throughput",)
    return msgspec.structs.replace(case, jobs=JOBS[case.name], latency_jobs=LONE_JOBS, measures=measures)


def queue_rows(rounds: int) -> list[dict[str, Any]]:
    """Raises `SystemFailed` as `run_case` does."""
    cases, rows = [case for case in all_cases() if case.name in JOBS], list[dict[str, Any]]()
    with private_server() as (server, scratch):
        bench = Bench(server=server, scratch=scratch, venvs=scratch, idle_s=IDLE_S)
        for number in range(rounds):
            for case in cases if number % 2 == 0 else cases[::-1]:
                rows.append({"case": case.name, "round": number, **run_case(short(case, number), bench)})
                say(f"round {number + 1} of {rounds}: {case.name}")
    return rows


def of_queue(rows: Sequence[Row]) -> Measured:
    """Of counts the least of the rounds, as delays only add to them; of CPU the median of the rounds' ratios."""
    ours = [row for row in rows if row["case"] == OURS]
    floor = {row["round"]: row for row in rows if row["case"] == FLOOR}

    def least(field: str) -> float:
        return min(float(row[field]) for row in ours if field in row)

    def ratio(field: str, below: str) -> float:
        return statistics.median(row[field] / floor[row["round"]][below] for row in ours)

    return {
        "batches": {"commands a job": least("commands")},
        "lone": {
            "requests to Redis of a lone job": least("lone_requests"),
            "commands of a lone job": least("lone_commands"),
        },
        "cpu": {
            "worker CPU a job / the floor's": ratio("worker_us", "worker_us"),
            "API CPU a job / the floor's worker": ratio("api_us", "worker_us"),
            "Redis CPU a job / the floor's": ratio("redis_us", "redis_us"),
        },
    }


async def of_sandboxes(tools: Path, scratch: Path) -> Figures:
    """System calls of a command by process, the least of the rounds; kinds that do not run here are said."""
    found: dict[str, float] = {}
    places = [Setting(scratch=scratch, tools=tools, venvs=scratch).place(str(number)) for number in range(OF_COUNTS)]
    for kind in KINDS:
        try:
            for place in places:
                counts = await calls.system_calls(Setting(scratch=place, tools=tools, venvs=scratch), kind)
                for name, count in counts.items():
                    if count >= 1:  # a process that takes no part may wake up once
                        each = f"{kind}, {name}"
                        found[each] = min(count, found.get(each, count))
        except Exception as error:
            say(f"{kind}: {type(error).__name__}: {error}")
        say(f"{kind}: system calls")
    return found


def measured(tools: Path) -> Measured:
    scratch = private_place()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # workers' loop
            sandboxes = runner.run(of_sandboxes(tools, scratch))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    rows = queue_rows(ROUNDS)
    report.write("check", {}, {"rounds": rows, "system_calls": sandboxes})
    return {**of_queue(rows), "calls": sandboxes}
