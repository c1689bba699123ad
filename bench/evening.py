"""python -m bench.evening: every benchmark of docs/reference/benchmarks.md, one after the other, on one machine.

Each is its target of the Makefile, in the form that the page documents. Its output, its `bench/out/*.json` and the
state of the machine around it come into one folder. One that fails does not stop the others; exit status 1 names them
at the end.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bench import measure, report
from bench.redis_server import server_binary

ROOT = Path(__file__).resolve().parents[1]
TARGETS = (  # in the order of the page
    "bench-queue", "bench-inference", "bench-sandbox", "bench-slurm", "bench-ablation", "bench-projector",
    "bench-page", "bench-scale", "bench-waiting", "bench-cells",
)  # fmt: skip
LIMIT_S = 3600.0  # of one: a bench that hangs must not take the evening
GRACE_S = 20.0
PACKAGES = ("prorl-mq", "redis", "hiredis", "msgspec", "uvloop", "starlette", "httpx")


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark. Loads are the averages over 1, 5 and 15 minutes."""

    target: str
    status: int | None  # of its process; None: ended at the limit
    started: str
    ended: str
    seconds: int
    load_at_start: Sequence[float]
    load_at_end: Sequence[float]
    idle_pct: float  # of all cores, while it ran
    errors: Sequence[str] = ()  # of cases, which do not make a benchmark fail by itself

    @property
    def failed(self) -> bool:
        return self.status != 0 or bool(self.errors)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def load() -> list[float]:
    return [round(each, 2) for each in os.getloadavg()]


def machine() -> dict[str, Any]:
    distribution = Path("/etc/os-release")
    return {
        **measure.describe_machine(),
        "date": now(),
        "code": measure.code(),
        "server": measure.printed(server_binary(), "--version"),
        "distribution": distribution.read_text().split("PRETTY_NAME=")[1].splitlines()[0].strip('"'),
        **measure.versions(PACKAGES),
    }


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to `make` and all below it, so that a bench ends what it started, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(GRACE_S)


def errors_in(result: Path) -> list[str]:
    """Cases of a result file that could not be measured."""
    document = msgspec.json.decode(result.read_bytes())
    rows = [row for row in document.get("rounds", ()) if isinstance(row, dict) and "error" in row]
    said = [f"{row.get('case')}: {row['error']}" for row in rows]
    return said + [f"{name}: {why}" for name, why in document.get("errors", {}).items()]


def results() -> dict[Path, int]:
    """Result files, with the time of their last change in ns."""
    return {path: path.stat().st_mtime_ns for path in report.OUT.glob("*.json")}


def run(target: str, folder: Path, make: Sequence[str], limit_s: float = LIMIT_S) -> Ran:
    """Runs one target into `folder/TARGET.txt` and takes the result files that it wrote."""
    started, began, load_0 = now(), time.monotonic(), load()
    before, old = measure.machine_ticks(), results()
    with (folder / f"{target}.txt").open("wb") as out:
        process = subprocess.Popen([*make, target], cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            stop(process)
    errors = list[str]()
    for result, changed in results().items():
        if old.get(result) != changed:
            shutil.copy2(result, folder)
            errors += errors_in(result)
    return Ran(
        target=target, status=status, started=started, ended=now(), seconds=round(time.monotonic() - began),
        load_at_start=load_0, load_at_end=load(),
        idle_pct=measure.machine_use(before, measure.machine_ticks()).idle_pct, errors=errors,
    )  # fmt: skip


def table(done: Sequence[Ran]) -> str:
    lines = [
        [
            each.target, each.started[11:16], str(each.seconds), f"{each.load_at_start[0]} to {each.load_at_end[0]}",
            f"{each.idle_pct:.0f}", {0: "done", None: "ended at the limit"}.get(each.status, f"status {each.status}"),
        ]
        for each in done
    ]  # fmt: skip
    return report.table(["benchmark", "began", "seconds", "load", "idle %", "result"], lines)


def every(targets: Sequence[str], folder: Path, make: Sequence[str]) -> list[Ran]:
    """`machine.json` is written again after each, so that an evening that was cut short says how far it came."""
    folder.mkdir(parents=True)
    about, done = machine(), list[Ran]()
    for target in targets:
        print(f"{now()} {target}, load {load()[0]}", flush=True)
        done.append(run(target, folder, make))
        body = {"machine": about, "ended": now(), "benchmarks": done}
        (folder / "machine.json").write_bytes(msgspec.json.format(msgspec.json.encode(body), indent=2))
        print(table(done[-1:]).splitlines()[-1], flush=True)
    return done


def leave(number: int, _frame: object) -> None:
    """A terminated evening ends the benchmark that runs: the exception runs its `finally`."""
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.evening", description=__doc__)
    parser.add_argument("--state", type=Path, default=Path(".state"), help="outputs come into STATE/bench/DATE")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: {' '.join(TARGETS)}")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, leave)
    folder = options.state.absolute() / "bench" / datetime.now(UTC).strftime("%Y-%m-%dT%H%M%S")
    make = ["make", "--no-print-directory", f"STATE={options.state}"]
    done = every(options.targets or TARGETS, folder, make)
    print(table(done))
    failed = [each for each in done if each.failed]
    print(f"outputs and machine.json: {folder}")
    for each in failed:
        print("\n  ".join([f"failed: {each.target}; see {folder / each.target}.txt", *each.errors]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
