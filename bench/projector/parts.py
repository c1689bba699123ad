"""The four things that are measured, each on a server that is empty at its start."""

import asyncio
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import measure
from bench.projector import slow_jobs
from bench.projector.mirrored import Follower, Mirrored
from bench.queue.ours import Ours
from bench.queue.processes import environment, start_worker, stop_workers
from bench.queue.rounds import SETTLE_S, START_TIMEOUT_S, throughput, wait_finished, warm_up
from bench.queue.system import Case, Setting
from bench.redis_server import RedisServer
from prorl_mq.cli.local import programs
from prorl_mq.servers import DATABASE
from prorl_mq.store.server.connection import RedisSettings

CATCH_UP_S = 1200.0
EVERY_S = 0.5
PAGES: Mapping[str, str] = {
    "queues.json": "/0/data/queues.json",
    "workers.json": "/0/data/workers.json",
    "first page": "/0/data/jobs/eval/finished/100/asc/1.json",
    "middle page": "/0/data/jobs/eval/finished/100/asc/10.json",
    "last page": "/0/data/jobs/eval/finished/100/asc/20.json",
}
Row = dict[str, Any]


def fresh(server: RedisServer, scratch: Path, jobs: int, *, timeout_s: float = 300.0) -> tuple[Case, Setting]:
    home = scratch / "case"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    server.clear()
    case = Case(name="ours", system="ours", jobs=jobs, timeout_s=timeout_s)
    return case, Setting(redis_url=server.unix_url, scratch=home, venvs=scratch)


def stages(server: RedisServer, scratch: Path, jobs: int, *, mirrored: bool, to_the_end: bool) -> Row:
    """Throughput of no-op jobs that saturate the machine, with or without the dashboard's processes.

    `to_the_end` waits until the mirror shows them all, which takes longer than they did.
    """
    case, setting = fresh(server, scratch, jobs)
    system = Mirrored(case, setting) if mirrored else Ours(case, setting)
    follower = Follower(server.client, str(server.socket_path))
    try:
        system.start()
        wait_finished(system, warm_up(system), START_TIMEOUT_S)
        time.sleep(SETTLE_S)
        if mirrored:
            follower.wait(CATCH_UP_S)
        figures: Row = dict(throughput(system, case, server))
        if mirrored and to_the_end:
            before = measure.cpu_s(system.processes()["projector"])
            figures["caught_up_s"] = follower.wait(CATCH_UP_S)
            figures["projector_after_us"] = (measure.cpu_s(system.processes()["projector"]) - before) / jobs * 1e6
    finally:
        follower.close()
        system.stop()
    return {"case": "with" if mirrored else "without", **figures}


def lag(server: RedisServer, scratch: Path, seconds: float) -> Row:
    """From an event until the mirror shows it, with 64 jobs every half second."""
    case, setting = fresh(server, scratch, 0)
    system, lags = Mirrored(case, setting), list[float]()
    follower = Follower(server.client, str(server.socket_path))
    try:
        system.start()
        wait_finished(system, warm_up(system), START_TIMEOUT_S)
        follower.wait(CATCH_UP_S)
        follower.lags()
        submitted, give_up = system.finished(), time.perf_counter() + seconds
        while time.perf_counter() < give_up:
            system.submit(64)
            submitted += 64
            due = time.perf_counter() + EVERY_S
            while system.finished() < submitted or time.perf_counter() < due:
                lags += follower.lags()
                time.sleep(0.002)
        follower.wait(CATCH_UP_S)
        lags += follower.lags()
    finally:
        follower.close()
        system.stop()
    p50, p99 = (1e3 * measure.percentile(lags, share) for share in (0.5, 0.99))
    return {"case": "lag", "events": len(lags), "jobs_s": submitted / seconds, "p50_ms": p50, "p99_ms": p99}


def cost(server: RedisServer, scratch: Path, jobs: int) -> Row:
    """Per job, where nothing of it falls into one batch; less what the same steps cost without a projector."""
    with_it, without = (_steps(server, scratch, jobs, mirrored=mirrored) for mirrored in (True, False))
    return {
        "case": "cost",
        "commands": with_it["commands"] - without["commands"],
        "redis_us": with_it["redis_us"] - without["redis_us"],
        "projector_us": with_it["projector_us"],
    }


def _steps(server: RedisServer, scratch: Path, jobs: int, *, mirrored: bool) -> dict[str, float]:
    _, setting = fresh(server, scratch, jobs)
    settings = RedisSettings(url=server.unix_url)
    program, _ = programs.dashboard(setting.scratch, settings, port=0, database=DATABASE.default, token="-")
    started = [start_worker(program.argv, environment(program.env), program.log)] if mirrored else []
    follower, pids = Follower(server.client, str(server.socket_path)), [each.pid for each in started]
    try:
        if mirrored:
            server.client.xadd("{prorl}:events", {"e": ""})
            follower.wait(START_TIMEOUT_S)
        server.reset_commands()
        redis_0, cpu_0 = server.cpu_s(), measure.cpu_s(pids)
        looks = 0

        def shown() -> None:
            nonlocal looks
            while mirrored and not follower.caught_up():
                looks += 2
                time.sleep(0.02)
            looks += 2 if mirrored else 0

        asyncio.run(slow_jobs.run(settings, jobs, shown))
        time.sleep(SETTLE_S)
        commands = sum(server.commands().values()) - looks
        redis_s, cpu_s = server.cpu_s() - redis_0, measure.cpu_s(pids) - cpu_0
    finally:
        follower.close()
        stop_workers(started)
    return {"commands": commands / jobs, "redis_us": redis_s / jobs * 1e6, "projector_us": cpu_s / jobs * 1e6}


def pages(server: RedisServer, scratch: Path, jobs: int, looks: int) -> Row:
    """How long the page takes when so many jobs have passed."""
    case, setting = fresh(server, scratch, jobs, timeout_s=900.0)
    system = Mirrored(case, setting)
    follower = Follower(server.client, str(server.socket_path))
    row: Row = {"case": "pages", "jobs": jobs}
    try:
        system.start()
        wait_finished(system, warm_up(system), START_TIMEOUT_S)
        memory, before = server.memory_bytes(), system.finished()
        system.submit(jobs)
        wait_finished(system, before + jobs, case.timeout_s)
        row["caught_up_s"] = follower.wait(CATCH_UP_S)
        row["memory_mib"] = (server.memory_bytes() - memory) / 2**20
        row["records"] = dict(follower.registries())
        with system.page() as page:
            for name, path in PAGES.items():
                row[f"{name}_ms"] = 1e3 * sorted(_timed(page, path) for _ in range(looks))[looks // 2]
    finally:
        follower.close()
        system.stop()
    return row


def _timed(page: Any, path: str) -> float:
    began = time.perf_counter()
    page.get(path).raise_for_status()
    return time.perf_counter() - began
