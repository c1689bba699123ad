"""On a real Slurm of virtual nodes: throughput by nodes, and what faults cost. Stages only sleep."""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.timelines import moves_of, throughput
from prorl_mq.clock import wall_ms
from prorl_mq.schema.ids import run_ref
from prorl_mq.schema.messages import BatchRequest, Event, GroupRecord, GroupRequest, Limits, Stage, Task
from prorl_mq.service import submit
from prorl_mq.store import pools
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from tests.slurm.real.cluster import Cluster, Site, served
from tests.support.service import acknowledge_all, gather

SLOTS: Final = 8
ROUNDS: Final = 10  # of jobs for each slot
STAGES_MS: Final = {"init_ms": 500, "run_ms": 4_000, "eval_ms": 1_000}
NODE: Final = {"kind": "node", "cpus": 9, "slots": SLOTS}  # one of them on each node
EVAL: Final = {"kind": "eval", "slots": 4 * SLOTS}
WITHIN_S: Final = 300.0


@contextmanager
def site(nodes: int) -> Iterator[Site]:
    """A cluster with Redis and the API on its first node."""
    with tempfile.TemporaryDirectory(prefix="pb", ignore_cleanup_errors=True) as name:
        cluster = Cluster(Path(name) / "c")
        cluster.admin("up", str(nodes), "16")
        try:
            (Path(name) / "s").mkdir()
            with served(cluster, Path(name) / "s") as found:
                yield found
        finally:
            cluster.admin("down")


@asynccontextmanager
async def store_of(found: Site) -> AsyncIterator[Store]:
    redis = connect(RedisSettings(rendezvous=found.file("ingress")))
    waiting = connect(RedisSettings(rendezvous=found.file("ingress")))
    store = Store(redis, Keys(), name="bench", waiting=waiting)
    await pools.add(store, "default:policy", "http://127.0.0.1:1")
    try:
        yield store
    finally:
        await redis.aclose()
        await waiting.aclose()


async def scale_out(nodes: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each number of nodes, each time with as many jobs as the slots can do in `ROUNDS` rounds."""
    rows: list[dict[str, Any]] = []
    with site(max(nodes)) as found:
        async with store_of(found) as store:
            found.start(node={**NODE, "count": nodes[0]}, eval={**EVAL, "count": 2})
            there = nodes[0]
            for count in nodes:
                if count > there:
                    found.prorl("scale", "--array", "node", "--add", str(count - there))
                    there = count
                await workers_there(store, 2 * count + 2)
                records = await done(store, f"nodes-{count}", jobs=count * SLOTS * ROUNDS)
                rows.append({"case": f"{count} nodes", "nodes": count, **throughput(records)})
                print(rows[-1], flush=True)
    base = rows[0]["jobs_s"] / rows[0]["nodes"]
    return [{**row, "of_linear_pct": round(100 * row["jobs_s"] / row["nodes"] / base, 1)} for row in rows]


async def faults() -> list[dict[str, Any]]:
    """A lost node, a drain of an idle and of a busy worker, and a pre-emption."""
    with site(4) as found:
        async with store_of(found) as store:
            found.start(node={**NODE, "count": 3}, eval=EVAL)
            await workers_there(store, 7)
            return [await _drain_idle(found), await _pre_emption(found, store), await _lost_node(found, store)]


async def _drain_idle(found: Site) -> dict[str, Any]:
    """Of an array of its own, from the signal to the end of its process."""
    found.arrays["idle"] = {"kind": "eval", "sandbox": "none", "slots": 4, "warn_s": 40}
    found.prorl("submit", "idle")
    await _until(lambda: len(found.cluster.processes("SLURM_JOB_NAME=t.idle")) > 0)
    async with store_of(found) as store:
        await workers_there(store, 8)
    [task] = found.tasks("idle")
    began = time.monotonic()
    found.cluster.run("scancel", "--signal=TERM", "--batch", task)
    await _until(lambda: not found.cluster.processes("SLURM_JOB_NAME=t.idle"))
    return {"case": "drain of an idle worker", "s": round(time.monotonic() - began, 2)}


async def _pre_emption(found: Site, store: Store) -> dict[str, Any]:
    """SIGUSR1's and SIGTERM's way is the same: how much of RUN is thrown away when a node is taken, and until when."""
    waiting = asyncio.create_task(done(store, "preempted", jobs=3 * SLOTS * 3, run_ms=8_000))
    await _until_busy(store, 3 * SLOTS)
    urgent = ["sbatch", "--parsable", "-p", "urgent", "-J", "urgent", "-w", "n2", "-c", "9", "-o", "/dev/null"]
    began = wall_ms()
    job = found.cluster.run(*urgent, "--wrap", "sleep 600").strip()
    await _until(lambda: found.cluster.states("urgent").get(job) == "RUNNING")
    taken_s = (wall_ms() - began) / 1000
    found.cluster.run("scancel", job)
    found.prorl("scale", "--array", "node")
    moves = [move for record in await waiting for move in moves_of(record)]
    return {"case": "pre-emption of a node", "s": round(taken_s, 2), **waste(moves)}


async def _lost_node(found: Site, store: Store) -> dict[str, Any]:
    waiting = asyncio.create_task(done(store, "lost", jobs=3 * SLOTS * 3, run_ms=8_000))
    await _until_busy(store, 2 * SLOTS)
    node = max(found.cluster.nodes_of("t.node").values())
    began = wall_ms()
    await asyncio.to_thread(found.cluster.admin, "lose", node)
    moves = [move for record in await waiting for move in moves_of(record)]
    taken = {(move.job_id, move.ms) for move in moves if move.event in {"reap", "evacuate"} and move.ms >= began}
    again = [
        min(move.ms for move in moves if move.job_id == job and move.event == "claim" and move.ms >= at) - began
        for job, at in taken
    ]
    return {
        "case": "loss of a node", "s": round(max(again) / 1000, 2), "jobs_moved": len(again),
        "median_s": round(statistics.median(again) / 1000, 2), **waste(moves),
    }  # fmt: skip


def waste(moves: Sequence[Event]) -> dict[str, Any]:
    """Seconds of RUN whose result nobody got, and their share of all."""
    lost = whole = 0
    began: dict[str, int] = {}
    for move in sorted(moves, key=lambda each: each.ms):
        if move.event == "claim" and move.stage == Stage.RUN:
            began[move.job_id] = move.ms
        elif move.job_id in began and move.event in {"advance", "fail", "reap", "release"}:
            spent = move.ms - began.pop(move.job_id)
            whole += spent
            lost += spent if move.event != "advance" else 0
    return {"wasted_s": round(lost / 1000, 1), "wasted_pct": round(100 * lost / max(1, whole), 1)}


async def done(store: Store, name: str, *, jobs: int, **about: int) -> list[GroupRecord]:
    """All groups of a run, one sample each; RUN takes a quarter more or less."""
    dice = random.Random(name)
    stages: Mapping[str, int] = {**STAGES_MS, **about}
    groups = []
    for number in range(jobs):
        payload = {**stages, "run_ms": round(stages["run_ms"] * dice.uniform(0.75, 1.25)), "secret": "CANARY"}
        task = Task(task_id=f"t{number}", data_source="chaos", payload=payload)
        groups.append(GroupRequest(task=task, n=1))
    limits = Limits(max_deaths=20, max_attempts=20, backoff_ms=50)
    await submit.accept(store, "default", BatchRequest(run_id=name, batch_id="b", groups=groups, limits=limits))
    run = run_ref("default", name)
    records = await gather(store, None, len(groups), within_s=WITHIN_S, run=run)
    if len(records) != len(groups):
        raise RuntimeError(f"{name}: {len(groups) - len(records)} groups are missing after {WITHIN_S:.0f} s")
    await acknowledge_all(store, run)
    return records


async def workers_there(store: Store, count: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while len(await living(store)) < count:
            await asyncio.sleep(0.2)


async def _until_busy(store: Store, jobs: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while sum(worker.busy for worker in await living(store) if worker.stage is Stage.RUN) < jobs:
            await asyncio.sleep(0.1)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.02)
