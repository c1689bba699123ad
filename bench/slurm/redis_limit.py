"""How many connected workers one Redis bears: its CPU while they idle, and what each of them then waits for a job."""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.measure import percentile
from bench.slurm.consumers import KEYS
from prorl_mq.process import redis_server
from prorl_mq.schema.messages import Stage
from prorl_mq.store import streams
from prorl_mq.store.scripts import script
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from prorl_mq.store.server.fitness import info
from prorl_mq.store.store import Store
from prorl_mq.store.workers import Neighbours, living

IDLE_S: Final = 8.0
JOBS: Final = 400
JOBS_A_S: Final = 100
A_CLIENT: Final = 512  # consumers in one process
CONNECTIONS: Final = 3  # of a worker


async def measure(count: int) -> dict[str, Any]:
    """One row: `count` idle workers on a server of their own."""
    with tempfile.TemporaryDirectory(prefix="pb") as name:
        directory = Path(name)
        clients = CONNECTIONS * count + 100
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, clients + 200)), hard))
        process = redis_server.start(
            redis_server.installed_binary() or redis_server.find_binary(), directory, ["--maxclients", str(clients)]
        )
        settings = RedisSettings(url=f"unix://{directory}/redis.sock", namespace="bench")
        try:
            await redis_server.answering(settings, process, directory)
            return {"case": f"{count} workers", "workers": count, **await _figures(settings, directory, count)}
        finally:
            await asyncio.to_thread(redis_server.stop, process)


async def _figures(settings: RedisSettings, directory: Path, count: int) -> dict[str, Any]:
    redis = connect(settings)
    store = Store(redis, KEYS, name="bench")
    holders: list[subprocess.Popen[str]] = []
    try:
        await streams.ensure(redis, streams.shared(KEYS))
        await ask(redis, "SCRIPT", "LOAD", script("renew").text)
        for first in range(0, count, A_CLIENT):
            argv = [sys.executable, "-m", "bench.slurm.consumers", str(directory / "redis.sock"), str(first)]
            argv.append(str(min(A_CLIENT, count - first)))
            holders.append(_start(argv))
        for holder in holders:
            assert holder.stdout is not None
            assert (await asyncio.to_thread(holder.stdout.readline)).strip() == "ready"
        while int(await store.read("ZCARD", KEYS.workers)) < count:
            await asyncio.sleep(0.2)
        cpu = await _cpu_s(store)
        began = time.monotonic()
        await asyncio.sleep(IDLE_S)
        idle = (await _cpu_s(store) - cpu) / (time.monotonic() - began)
        memory = int((await info(redis, "memory"))["used_memory"])
        seen_ms = await _timed(lambda: living(store))
        near = Neighbours(store, Stage.RUN, "n1")
        await near.slots()
        near_ms = await _timed(near.slots)
        for number in range(JOBS):
            now = time.time()
            await ask(redis, "XADD", KEYS.stage(Stage.RUN), "*", "j", f"sent:{now}")
            await asyncio.sleep(max(0.0, began + IDLE_S + number / JOBS_A_S - time.monotonic()))
        await asyncio.sleep(1.0)
        delays = [delay for holder in holders for delay in json.loads(holder.communicate("")[0].splitlines()[-1])]
        return {
            "redis_cpu_pct": round(100 * idle, 1), "kib_a_worker": round(memory / 1024 / count, 1),
            "delay_p50_ms": round(percentile(delays, 0.5), 2), "delay_p99_ms": round(percentile(delays, 0.99), 2),
            "jobs_seen": len(delays), "all_workers_ms": round(seen_ms, 1), "neighbours_ms": round(near_ms, 1),
        }  # fmt: skip
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
        await redis.aclose()


def _start(argv: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def _timed(call: Any) -> float:
    began = time.monotonic()
    await call()
    return 1000 * (time.monotonic() - began)


async def _cpu_s(store: Store) -> float:
    found = await info(store.redis, "cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])
