"""python -m bench.slurm: throughput by nodes, what faults cost, and how many consumers one Redis bears.

Nodes are virtual (Debian's Slurm on this machine) and stages only sleep, so that what is measured is the coordination:
every node's processes share this machine's cores. One round; `machine` tells what else it had to do.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench import measure, report
from bench.slurm import cluster_cases, redis_limit

NODES: Final = (1, 2, 4, 8)
CONSUMERS: Final = (64, 512, 4096)
PACKAGES: Final = ("prorl-mq", "redis", "msgspec", "uvloop")


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    fields = list(dict.fromkeys(name for row in rows for name in row))
    cells = [["-" if row.get(name) is None else str(row[name]) for name in fields] for row in rows]
    print(f"\n{title}\n{report.table(fields, cells)}", flush=True)


def goals(rows: Sequence[Mapping[str, Any]]) -> dict[str, report.Goal]:
    most = max(rows, key=lambda row: row["nodes"], default=None)
    value = None if most is None else most["of_linear_pct"]
    return {f"throughput at {most['nodes'] if most else 8} nodes, % of linear": report.goal(value, ">= 95")}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.slurm", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=list(NODES), help="virtual nodes (1 2 4 8)")
    parser.add_argument("--consumers", type=int, nargs="*", default=list(CONSUMERS), help="(64 512 4096)")
    parser.add_argument("--no-faults", action="store_true")
    given = parser.parse_args()
    machine = measure.describe_machine()
    before = measure.machine_ticks()
    limit = [asyncio.run(redis_limit.measure(count)) for count in given.consumers]
    show("One Redis, idle workers", limit)
    scaled = asyncio.run(cluster_cases.scale_out(given.nodes)) if given.nodes else []
    show("Scale-out", scaled)
    faults = [] if given.no_faults else asyncio.run(cluster_cases.faults())
    show("Faults", faults)
    use = measure.machine_use(before, measure.machine_ticks())
    judged = goals(scaled)
    print(f"\n{report.goal_lines(judged)}")
    body = {
        "machine": {**machine, "idle_pct": use.idle_pct, "stolen_pct": use.stolen_pct},
        "versions": measure.versions(PACKAGES), "stages_ms": cluster_cases.STAGES_MS,
        "scale_out": scaled, "consumers": limit, "faults": faults,
    }  # fmt: skip
    print(report.write("slurm", judged, body))


if __name__ == "__main__":
    main()
