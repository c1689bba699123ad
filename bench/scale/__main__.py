"""python -m bench.scale: what a turn of each duty costs at two sizes, beside what has changed."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from bench import measure, report
from bench.redis_server import RedisServer, private_server
from bench.report import Goal
from bench.scale import cases, filling
from bench.scale.cases import CASES, KEYS
from bench.scale.figures import Cost
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store

COLUMNS: Final = ("size", "commands", "KiB", "Redis ms", "wall ms", "slowest script ms")
SCRIPT_MS: Final = "<= 5"
GROWTH: Final = "<= 1.5"


ROUNDS: Final = 3


def least(costs: Sequence[Cost]) -> Cost:
    """The first round, with the slowest script of the best one: what the machine did meanwhile only adds to it."""
    return costs[0]._replace(script_ms=min(cost.script_ms for cost in costs))


async def measured(server: RedisServer, name: str, size: int) -> Cost:
    """One case on an emptied server."""
    server.client.flushall()
    settings = RedisSettings(url=server.unix_url, namespace=KEYS.namespace)
    redis, waiting = connect(settings), connect(settings)
    try:
        store = Store(redis, KEYS, name="bench", waiting=waiting)
        await filling.begin(store)
        return await CASES[name][0](server, store, size)
    finally:
        await redis.aclose()
        await waiting.aclose()


def judge(found: dict[str, list[Cost]]) -> dict[str, Goal]:
    """No script holds Redis up, and four times the size costs no more commands."""
    slowest = max(cost.script_ms for costs in found.values() for cost in costs)
    goals = {"slowest script, ms": report.goal(slowest, SCRIPT_MS)}
    for name, (small, large) in found.items():
        if CASES[name][0] not in cases.GROWING:
            goals[f"{name}: commands at four times the size"] = report.goal(large.commands / small.commands, GROWTH)
    return goals


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    only = parser.parse_args().only
    machine, began = measure.describe_machine(), time.monotonic()
    found: dict[str, list[Cost]] = {}
    lines: list[list[str]] = []
    with private_server() as (server, _):
        version = server.version()
        for name in [name for name in CASES if only in name]:
            for size in CASES[name][1]:
                cost = least([asyncio.run(measured(server, name, size)) for _ in range(ROUNDS)])
                found.setdefault(name, []).append(cost)
                lines.append([name, f"{size:,}", *map(report.figure, cost)])
                print(f"{lines[-1]}", file=sys.stderr, flush=True)
    print(report.table(["case", *COLUMNS], lines))
    goals = judge(found)
    print(report.goal_lines(goals))
    body: dict[str, Any] = {
        "machine": {**machine, "load_at_end": measure.load()},
        "versions": {"server": version, **measure.versions(("prorl-mq", "redis"))},
        "cases": {name: [cost._asdict() for cost in costs] for name, costs in found.items()},
    }
    print(f"{report.write('scale', goals, body)}; {time.monotonic() - began:.0f} s, load {measure.load()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
