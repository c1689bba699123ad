"""The libraries' chains and the floor as systems: one worker process a stage, started by the library's own command."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.queue.processes import ClientProcess, Process, environment, last_words, start_worker, stop_workers
from bench.queue.system import STAGES, Case, Setting, Submitted, SystemFailed, SystemMissing

LIBRARIES = ("ardiq", "huey", "dramatiq", "saq", "taskiq", "streaq", "rq")
LATENCY_TIMEOUT_S = 60.0


def worker_command(system: str, stage: str, case: Case, url: str) -> list[str]:
    """Program and arguments of one worker; the program is looked up beside the library's Python."""
    module = f"bench.queue.chain_{system}"
    queue = "eval_" if stage == "eval" else stage
    match system:
        case "floor":
            return ["python", "-m", "bench.queue.floor", stage]
        case "ardiq":
            return ["ardiq", "run", "--quiet", f"{module}:{queue}"]
        case "huey":
            return ["huey_consumer", f"{module}.{queue}", "-w", case.options.get("threads", "1"), "-k", "thread", "-q"]
        case "dramatiq":
            return ["dramatiq", module, "-p", "1", "-t", case.options.get("threads", "8"), "-Q", stage]
        case "saq":
            return ["saq", f"{module}.{stage}_settings", "--quiet"]
        case "taskiq":
            return ["taskiq", "worker", f"{module}:{queue}", "--workers", "1", "--log-level", "ERROR"]
        case "streaq":
            return ["streaq", "run", f"{module}:{queue}"]
        case "rq":
            return ["rq", "worker", "-q", "-w", "rq.worker.SimpleWorker", "--url", url, stage]
    raise ValueError(f"{system} is no library of this benchmark: {', '.join(LIBRARIES)}, floor")


class Chain:
    """A library's three workers and its client."""

    def __init__(self, case: Case, setting: Setting) -> None:
        self.case, self.setting = case, setting
        home = Path(sys.prefix) if case.system == "floor" else setting.venvs / case.system
        self.bin = home.absolute() / "bin"
        if not (self.bin / "python").exists():
            raise SystemMissing(f"{home} does not exist: run bench/venvs.sh {setting.venvs}")
        self.module = "bench.queue.floor" if case.system == "floor" else f"bench.queue.chain_{case.system}"
        self.env = environment(
            {
                "BENCH_REDIS_URL": setting.redis_url,
                "BENCH_SCRATCH_DIR": str(setting.scratch),
                "BENCH_PAYLOAD_BYTES": str(case.payload_bytes),
                **case.options,
            }
        )
        self.done = setting.scratch / "done"
        self.done.touch()
        self.workers: dict[str, list[Process]] = {}
        self.client: ClientProcess | None = None

    def start(self) -> None:
        for stage in STAGES:
            program, *arguments = worker_command(self.case.system, stage, self.case, self.setting.redis_url)
            argv = [str(self.bin / program), *arguments]
            self.workers[stage] = [
                start_worker(argv, self.env, self.log(stage)) for _ in range(self.case.workers_per_stage)
            ]

    def log(self, stage: str) -> Path:
        return self.setting.scratch / f"{stage}.log"

    def processes(self) -> Mapping[str, Sequence[int]]:
        for stage, workers in self.workers.items():
            for worker in workers:
                if worker.poll() is not None:
                    words = last_words(self.log(stage))
                    raise SystemFailed(f"{self.case.name}: the {stage} worker ended with {worker.returncode}: {words}")
        return {stage: [worker.pid for worker in workers] for stage, workers in self.workers.items()}

    def ask(self, what: str, jobs: int, timeout_s: float) -> dict[str, object]:
        if self.client is None:
            log = self.setting.scratch / "client.log"
            self.client = ClientProcess(self.bin / "python", self.module, self.env, log)
        return self.client.ask({"do": what, "jobs": jobs}, timeout_s)

    def submit(self, jobs: int) -> Submitted:
        answer = self.ask("submit", jobs, 60.0 + jobs / 1000)
        return Submitted(
            seconds=float(str(answer["seconds"])),
            cpu_s=float(str(answer["cpu_s"])),
            requests=int(str(answer["requests"])),
        )

    def finished(self) -> int:
        return self.done.stat().st_size

    def latency(self, jobs: int) -> Sequence[float]:
        seconds = self.ask("latency", jobs, LATENCY_TIMEOUT_S)["latency_s"]
        assert isinstance(seconds, list)
        return [float(each) for each in seconds]

    def stop(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None
        stop_workers([worker for workers in self.workers.values() for worker in workers])
        self.workers = {}
