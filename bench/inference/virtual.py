"""The rules alone, in virtual time: real scripts on a real Redis, jobs that are only numbers, no noise of a machine.

python -m bench.inference.virtual
"""

import asyncio
import heapq
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench import measure, report
from bench.inference.load import POOL, SIGMA, Bounded, N, Ours
from bench.inference.rules import EverAssigned, RoundRobin
from prorl_mq.process import redis_server
from prorl_mq.schema.codec import encode
from prorl_mq.schema.items import Finish
from prorl_mq.schema.messages import Outcome, SampleRecord
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import connect
from prorl_mq.store.store import PREFERENCE_BOUND
from workers.inference.clients import InferenceClients

BACKENDS, AT_ONCE, JOBS, SEEDS = 8, 128, 1500, 3
GOAL = 1.15
RECORD = encode(SampleRecord(job_id="j", index=0, outcome=Outcome.INFRA_ERROR))
ADDRESSES = [f"http://backend-{number}" for number in range(BACKENDS)]


async def ours(bound: int, seed: int, jobs: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bv") as name:
        async with redis_server.running(Path(name)) as settings, InferenceClients() as clients:
            redis = connect(settings)
            store = Bounded(redis, Keys(settings.namespace), name="bench")
            store.bound = bound
            rig = Ours(store, clients)
            await rig.prepare()
            for address in ADDRESSES:
                await store.join(POOL, address, encode({"address": address}))

            async def begin(_number: int) -> tuple[str, Any]:
                held = await rig.hold()
                return (await store.assign(held, ramp_ms=0))[1].decode(), held

            async def end(held: Any) -> None:
                await store.finish([Finish(held, Outcome.INFRA_ERROR, RECORD)])

            found = await walk(begin, end, seed, jobs)
            await redis.aclose()
            return found


async def other(rule: RoundRobin | EverAssigned, seed: int, jobs: int) -> dict[str, float]:
    for address in ADDRESSES:
        rule.join(address)

    async def begin(_number: int) -> tuple[str, Any]:
        return rule.choose(frozenset()), None

    async def end(_held: Any) -> None:
        return

    return await walk(begin, end, seed, jobs)


async def walk(begin: Any, end: Any, seed: int, jobs: int) -> dict[str, float]:
    """Each job that ends makes way for the next. Queues are weighted by how long they lasted."""
    source = random.Random(seed)
    now, ends = 0.0, list[tuple[float, int, str, Any]]()
    load: Counter[str] = Counter()
    busy: Counter[str] = Counter()
    backends_of: dict[int, set[str]] = {}
    worst = span = 0.0
    for number in range(jobs):
        if number >= AT_ONCE:
            at, _, address, held = heapq.heappop(ends)
            lasted, now = at - now, at
            worst += lasted * max(load.values()) / (AT_ONCE / BACKENDS)
            span += lasted
            for each in ADDRESSES:
                busy[each] += load[each] * lasted
            await end(held)
            load[address] -= 1
        address, held = await begin(number)
        load[address] += 1
        backends_of.setdefault(number // N, set()).add(address)
        heapq.heappush(ends, (now + source.lognormvariate(-SIGMA * SIGMA / 2, SIGMA), number, address, held))
    return {
        "worst_mean_queue": max(busy.values()) / (sum(busy.values()) / BACKENDS),
        "worst_queue": worst / span,
        "backends_per_group": statistics.fmean(len(each) for each in backends_of.values()),
    }


async def rounds() -> list[dict[str, Any]]:
    found = []
    for seed in range(SEEDS):
        cases = {
            "heap in flight, affinity": ours(PREFERENCE_BOUND, seed, JOBS),
            "heap in flight": ours(-1, seed, JOBS),
            "round robin": other(RoundRobin(), seed, JOBS),
            "heap ever assigned": other(EverAssigned(), seed, JOBS),
        }
        found += [{"case": name, "round": seed, **await case} for name, case in cases.items()]
    return found


def main() -> int:
    started = time.monotonic()
    rows = asyncio.run(rounds())
    summary = report.summarise(rows)
    fields = ("worst_mean_queue", "worst_queue", "backends_per_group")
    print(report.table(["case", *fields], [[n, *(report.cell(s.get(f)) for f in fields)] for n, s in summary.items()]))
    best = summary["heap in flight, affinity"]
    goals = {
        "worst backend's mean queue over the mean": report.goal(best["worst_mean_queue"].median, f"<= {GOAL}"),
        "worst queue at any moment over the mean": report.goal(best["worst_queue"].median, f"<= {GOAL}"),
    }
    print(report.goal_lines(goals))
    path = report.write("inference-virtual", goals, {
        "machine": measure.describe_machine(),
        "settings": {"backends": BACKENDS, "at_once": AT_ONCE, "jobs": JOBS, "seconds": time.monotonic() - started},
        "cases": summary,
        "rounds": rows,
    })  # fmt: skip
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
