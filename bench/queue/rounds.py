"""One round of one case: idle, latency and throughput of a system on a clean server."""

import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench import measure
from bench.queue.cases import make_system
from bench.queue.ours import Ours
from bench.queue.processes import signal_trees
from bench.queue.system import STAGES, Case, Setting, System, SystemFailed
from bench.redis_server import RedisServer

WARM_UP_JOBS = 64
START_TIMEOUT_S = 45.0
POLL_S = 0.004
SETTLE_S = 0.3  # acknowledgements and clean-up that follow the last handler
TOP_COMMANDS = 8
MIN_SAMPLES_FOR_P99 = 30  # with fewer it would be the maximum by another name
Figures = dict[str, float | int | str]


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What all cases of one invocation share."""

    server: RedisServer
    scratch: Path
    venvs: Path
    idle_s: float


def run_case(case: Case, bench: Bench) -> Figures:
    """Figures of one round. Raises `SystemFailed`, `SystemMissing` or `NotImplementedError`; nothing keeps running."""
    home = bench.scratch / "case"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    bench.server.clear()
    bench.server.persist(case.durability)
    url = bench.server.unix_url if case.transport == "unix" else bench.server.tcp_url
    system = make_system(case, Setting(redis_url=url, scratch=home, venvs=bench.venvs))
    figures: Figures = {}
    before = measure.machine_ticks()
    try:
        system.start()
        if "intake" not in case.measures:
            wait_finished(system, warm_up(system), START_TIMEOUT_S)
            time.sleep(SETTLE_S)
        if "idle" in case.measures:
            figures |= idle(system, bench)
        if "latency" in case.measures:
            figures |= latency(system, case, bench.server, figures)
            if isinstance(system, Ours):
                figures |= of_lone("record", system.records(case.latency_jobs + 5))
            time.sleep(SETTLE_S)
        if "throughput" in case.measures:
            figures |= throughput(system, case, bench.server)
        if "intake" in case.measures:
            figures |= intake(system, case, bench.server)
    finally:
        system.stop()
        bench.server.clear()
        bench.server.persist("none")
    use = measure.machine_use(before, measure.machine_ticks())
    return figures | {"machine_idle_pct": use.idle_pct, "stolen_pct": use.stolen_pct, "load": measure.load()}


def warm_up(system: System) -> int:
    """Opens every connection and fills every cache on the way of a job."""
    system.submit(WARM_UP_JOBS)
    return WARM_UP_JOBS


def wait_finished(system: System, jobs: int, timeout_s: float) -> None:
    """Looks every few milliseconds: jobs of another process leave nothing that could be waited for."""
    deadline = time.monotonic() + timeout_s
    looked_at = time.monotonic()
    while system.finished() < jobs:
        now = time.monotonic()
        if now - looked_at > 1:
            system.processes()  # raises when a worker has died
            looked_at = now
        if now > deadline:
            raise SystemFailed(f"{system.finished()} of {jobs} jobs finished within {timeout_s:.0f} s")
        time.sleep(POLL_S)


def worker_pids(roles: Mapping[str, Sequence[int]]) -> list[int]:
    return [pid for stage in STAGES for pid in roles.get(stage, ())]


def idle(system: System, bench: Bench) -> Figures:
    """CPU of workers that have nothing to do, in per cent of a core: of the busiest one, and of all together."""
    roles = system.processes()
    workers = worker_pids(roles)
    before, wall = [measure.fine_cpu_s([pid]) for pid in workers], time.perf_counter()
    redis_before, asked = bench.server.cpu_s(), traffic(bench.server)
    time.sleep(bench.idle_s)
    wall = time.perf_counter() - wall
    used = [measure.fine_cpu_s([pid]) - start for pid, start in zip(workers, before, strict=True)]
    return {
        "idle_worker_pct": 100 * max(used) / wall,
        "idle_workers_pct": 100 * sum(used) / wall,
        "idle_redis_pct": 100 * (bench.server.cpu_s() - redis_before) / wall,
        **{f"idle_{name}_s": (now - asked[name]) / wall for name, now in traffic(bench.server).items()},
        "rss_mib": measure.rss_bytes(workers) / 2**20,
    }


def traffic(server: RedisServer) -> dict[str, int]:
    return {"requests": server.requests(), "commands": sum(server.commands().values())}


def latency(system: System, case: Case, server: RedisServer, quiet: Figures) -> Figures:
    """One job at a time into idle workers. What idle workers ask in the same time is taken off a job's requests."""
    before, wall = traffic(server), time.perf_counter()
    seconds = list(system.latency(case.latency_jobs + 5))
    wall, asked = time.perf_counter() - wall, traffic(server)
    jobs = len(seconds)
    of_a_job = {
        f"lone_{name}": (now - before[name] - wall * float(quiet[f"idle_{name}_s"])) / jobs
        for name, now in asked.items()
        if f"idle_{name}_s" in quiet
    }
    return {**of_a_job, **of_lone("latency", seconds)}


def of_lone(name: str, seconds: Sequence[float]) -> Figures:
    """Of jobs that come one at a time, without the first, which open connections."""
    seconds = seconds[5:] or seconds
    figures: Figures = {f"{name}_samples": len(seconds), f"{name}_p50_ms": 1e3 * measure.percentile(seconds, 0.5)}
    if len(seconds) >= MIN_SAMPLES_FOR_P99:
        figures[f"{name}_p99_ms"] = 1e3 * measure.percentile(seconds, 0.99)
    return figures


def throughput(system: System, case: Case, server: RedisServer) -> Figures:
    """Workers are held while the jobs go in, so that neither start-up nor submission is in the figures."""
    roles = system.processes()
    workers = worker_pids(roles) if case.hold else []
    signal_trees(workers, signal.SIGSTOP)
    try:
        redis_0 = server.cpu_s()
        submitted = system.submit(case.jobs + case.backlog)
        redis_1, memory = server.cpu_s(), server.memory_bytes()
        server.reset_commands()
        cpu_0 = {role: measure.cpu_s(pids) for role, pids in roles.items()}
        before, start = system.finished(), time.perf_counter()
    finally:
        signal_trees(workers, signal.SIGCONT)
    wait_finished(system, before + case.jobs, case.timeout_s)
    seconds, done = time.perf_counter() - start, system.finished() - before
    if not case.backlog:
        time.sleep(SETTLE_S)
    cpu = {role: (measure.cpu_s(pids) - cpu_0[role]) / done * 1e6 for role, pids in roles.items()}
    commands = {name: calls / done for name, calls in server.commands().items()}
    top = sorted(commands.items(), key=lambda item: -item[1])[:TOP_COMMANDS]
    all_jobs = case.jobs + case.backlog
    return {
        "jobs": done,
        "jobs_s": done / seconds,
        "worker_us": sum(cpu[stage] for stage in STAGES),
        **{f"{role}_us": spent for role, spent in cpu.items()},
        "redis_us": (server.cpu_s() - redis_1) / done * 1e6,
        "commands": sum(commands.values()),
        "top_commands": ", ".join(f"{name} {calls:.2f}" for name, calls in top),
        "submit_jobs_s": all_jobs / submitted.seconds,
        "submit_us": submitted.cpu_s / all_jobs * 1e6,
        "submit_redis_us": (redis_1 - redis_0) / all_jobs * 1e6,
        "queued_mib": memory / 2**20,
    }


def intake(system: System, case: Case, server: RedisServer) -> Figures:
    """Submission alone, with workers idle or absent: what the door carries."""
    system.submit(WARM_UP_JOBS)
    server.reset_commands()
    roles, redis_0 = system.processes(), server.cpu_s()
    cpu_0 = {role: measure.cpu_s(pids) for role, pids in roles.items()}
    submitted = system.submit(case.jobs)
    return {
        "jobs": case.jobs,
        "submit_jobs_s": case.jobs / submitted.seconds,
        "batches_s": submitted.requests / submitted.seconds,
        "submit_us": submitted.cpu_s / case.jobs * 1e6,
        **{f"{role}_us": (measure.cpu_s(pids) - cpu_0[role]) / case.jobs * 1e6 for role, pids in roles.items()},
        "submit_redis_us": (server.cpu_s() - redis_0) / case.jobs * 1e6,
        "commands": sum(server.commands().values()) / case.jobs,
    }
