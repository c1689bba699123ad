"""How evenly jobs of lognormal length are spread over backends, and how soon again after one joins, dies or slows down.

    python -m bench.inference.balance            # about eight minutes
    python -m bench.inference.balance --quick    # about one, no verdict

Ours is the whole path of a RUN worker: jobs leased in Redis, the heap, the breaker. Beside it, round robin, and the
heap of jobs ever assigned that ProRL has. The backends are processes; the queue of one is the calls under way on it.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import measure, report
from bench.inference.fleet import Fleet
from bench.inference.load import POOL, SAMPLE_S, Bounded, Counting, Job, Loop, Ours, Queues
from bench.inference.rules import Chosen, EverAssigned, RoundRobin
from prorl_mq.duties.backend_control import BackendControl
from prorl_mq.duties.probe_backends import BackendHealth
from prorl_mq.process import redis_server
from prorl_mq.store import pools
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import connect
from prorl_mq.store.store import PREFERENCE_BOUND
from workers.inference.clients import InferenceClients
from workers.inference.policy import StickyPolicy

BACKENDS, AT_ONCE = 8, 128
TOKEN_MS, MEAN_TOKENS = 30.0, 120
BALANCED = 1.15
NEAR, STEADY_S = 1.3, 2.0  # what counts as even again: means of so many seconds within this factor
RULES = ("heap in flight", "round robin", "heap ever assigned")
EVENTS = ("joins", "dies", "slows ten-fold")


class Rig:
    """One rule with its backends and its load."""

    def __init__(self, rule: str, fleet: Fleet, ours: Ours, clients: InferenceClients) -> None:
        self.rule, self.fleet, self.ours = rule, fleet, ours
        self.other = {"round robin": RoundRobin(), "heap ever assigned": EverAssigned()}.get(rule)
        self.counting = Counting(ours.pools.calls.of(POOL) if self.other is None else clients)
        self.loop = Loop(self.next, self.counting, mean_tokens=MEAN_TOKENS)
        self._count = 0

    async def join(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            if self.other is None:
                await pools.add(self.ours.store, POOL, address, protocol="vllm-generate", model="policy")
            else:
                self.other.join(address)
        self.loop.backends = self.fleet.addresses

    async def next(self) -> Job:
        if self.other is None:
            return await self.ours.next(self.counting)
        self._count += 1
        name = f"{self.rule.replace(' ', '-')}-{self._count}"

        async def nothing() -> None:
            return

        policy = StickyPolicy(job_id=name, token="1", assigner=Chosen(self.other.choose), clients=self.counting)
        return Job(name, policy, nothing)


@asynccontextmanager
async def rig(rule: str, *, bound: int = PREFERENCE_BOUND):
    """Backends, Redis and the loops of a worker and of an API process, for one run."""
    with Fleet(BACKENDS, token_ms=TOKEN_MS) as fleet, tempfile.TemporaryDirectory(prefix="bb") as name:
        async with redis_server.running(Path(name)) as settings, InferenceClients() as clients:
            redis, control = connect(settings), BackendControl()
            store = Bounded(redis, Keys(settings.namespace), name="bench")
            store.bound = bound
            ours = Ours(store, clients)
            await ours.prepare()
            made = Rig(rule, fleet, ours, clients)
            await made.join(fleet.addresses)
            health = BackendHealth(store, control)

            async def probing() -> None:
                while True:
                    await asyncio.sleep(await health.turn())

            tasks = [asyncio.create_task(probing()), asyncio.create_task(ours.pools.calls.run())]
            try:
                yield made
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await control.aclose()
                await redis.aclose()


def worst_mean_queue(samples: Sequence[Queues]) -> float:
    """The fullest backend's mean queue over the mean of all backends'."""
    means = [statistics.fmean(each.by_backend[at] for each in samples) for at in samples[0].by_backend]
    return max(means) / statistics.fmean(means)


async def steady(rule: str, jobs: int) -> dict[str, Any]:
    """Nothing happens; how even is it?"""
    async with rig(rule) as made:
        await made.loop.run(jobs, AT_ONCE)
        samples = made.loop.samples
        return {
            "worst_mean_queue": worst_mean_queue(samples),
            "worst_queue": statistics.fmean(each.worst for each in samples),
            "wrong": made.loop.failed, "unfinished": jobs - made.loop.done,
        } | await leftovers(made)  # fmt: skip


async def after(rule: str, event: str, jobs: int) -> dict[str, Any]:
    """Something happens in the middle; how long until it is even again, for good?"""
    async with rig(rule) as made:
        load = asyncio.create_task(made.loop.run(jobs, AT_ONCE))
        await made.loop.until_done(jobs // 3)
        happened = time.monotonic()
        victim = made.fleet.addresses[0]
        match event:
            case "joins":
                await made.join(await asyncio.to_thread(made.fleet.start, 1))
                happened = time.monotonic()
            case "dies":
                await asyncio.to_thread(made.fleet.kill, victim)
                made.loop.backends = made.fleet.addresses
            case _:
                await asyncio.to_thread(made.fleet.slow, victim, 10.0)
        await load
        later = [each for each in made.loop.samples if happened <= each.at_s]
        peak = max(each.worst for each in later)
        return {
            "balanced_again_s": balanced_again(later, happened), "peak_queue": peak,
            "wrong": made.loop.failed, "unfinished": jobs - made.loop.done,
        } | await leftovers(made)  # fmt: skip


def balanced_again(samples: Sequence[Queues], happened: float) -> float | None:
    """Seconds until balance is found for good: from then on every backend's mean over `STEADY_S` is near all others'.

    None if it is not found before the load ends.
    """
    window = int(STEADY_S / SAMPLE_S)
    names = samples[-1].by_backend.keys()
    starts = range(0, len(samples) - window, window // 8)
    bad = [start for start in starts if not even(samples[start : start + window], names)]
    if not bad:
        return 0.0
    last = bad[-1] + window
    return samples[last].at_s - happened if bad[-1] != starts[-1] else None


def even(samples: Sequence[Queues], names: AbstractSet[str]) -> bool:
    """Whether each of these backends' mean queue is within `NEAR` of the mean of all."""
    if any(each.by_backend.keys() != names for each in samples):
        return False
    means = [statistics.fmean(each.by_backend[at] for each in samples) for at in names]
    mean = statistics.fmean(means)
    return mean / NEAR <= min(means) and max(means) <= mean * NEAR


async def affinity(bound: int, jobs: int) -> dict[str, Any]:
    """Prefix-cache hits with and without the preference for backends that have served the group."""
    async with rig(RULES[0], bound=bound) as made:
        before = made.fleet.told()
        await made.loop.run(jobs, AT_ONCE)
        return {
            "hit_ratio": made.fleet.hit_ratio(before),
            "worst_mean_queue": worst_mean_queue(made.loop.samples),
        }


async def leftovers(made: Rig) -> dict[str, int]:
    return {"reservations_left": await made.ours.left(), "lost": made.ours.lost} if made.other is None else {}


def runs(jobs: int, *, quick: bool) -> list[tuple[str, Callable[[], Awaitable[dict[str, Any]]]]]:
    rules = RULES if not quick else RULES[:2]
    events = EVENTS if not quick else EVENTS[1:2]
    bounds = {"without affinity": -1, "with affinity": PREFERENCE_BOUND}
    return [
        *((rule, partial(steady, rule, jobs)) for rule in rules),
        *((f"{rule}, one {event}", partial(after, rule, event, 2 * jobs)) for event in events for rule in rules),
        *((name, partial(affinity, bound, jobs)) for name, bound in bounds.items()),
    ]


SHOWN = ("worst_mean_queue", "worst_queue", "peak_queue", "balanced_again_s", "hit_ratio", "lost", "reservations_left")


def _cell(value: float | None) -> str:
    return "-" if value is None else report.figure(value)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.inference.balance", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer jobs and cases, no verdict")
    parser.add_argument("--jobs", type=int, default=0, help="of one run (default 800; quick 300)")
    options = parser.parse_args()
    jobs = options.jobs or (300 if options.quick else 800)
    machine, started, rows = measure.describe_machine(), time.monotonic(), []
    for name, run in runs(jobs, quick=options.quick):
        row = {"case": name, "round": 0, **asyncio.run(run())}
        rows.append(row)
        print(
            f"{name}: " + ", ".join(f"{key} {row[key]}" for key in row if key not in {"case", "round"}), file=sys.stderr
        )
    by_case = {row["case"]: row for row in rows}
    ours = by_case[RULES[0]]
    goals = {} if options.quick else {
        "worst backend's mean queue over the mean": report.goal(ours["worst_mean_queue"], f"<= {BALANCED}"),
        "jobs lost": report.goal(sum(row.get("lost", 0) + row["unfinished"] for row in rows if "lost" in row), "== 0"),
        "reservations left": report.goal(sum(row.get("reservations_left", 0) for row in rows), "== 0"),
        "hit ratio with affinity over without": report.goal(
            by_case["with affinity"]["hit_ratio"] / by_case["without affinity"]["hit_ratio"], "> 1"
        ),
    }  # fmt: skip
    lines = [
        [row["case"], *(report.figure(row[key]) if row.get(key) is not None else "-" for key in SHOWN)] for row in rows
    ]
    print(report.table(["case", *SHOWN], lines))
    print(report.goal_lines(goals))
    path = report.write("inference-balance", goals, {
        "machine": {**machine, "load_at_end": measure.load()},
        "settings": {
            "quick": options.quick, "backends": BACKENDS, "at_once": AT_ONCE, "jobs": jobs, "token_ms": TOKEN_MS,
            "mean_tokens": MEAN_TOKENS, "seconds": round(time.monotonic() - started),
        },
        "rounds": rows,
    })  # fmt: skip
    print(f"{path}; {time.monotonic() - started:.0f} s, load {measure.load()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
