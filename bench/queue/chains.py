"""The libraries' chains and the floor as systems: one worker process a stage, started by the library's own command."""

import sys
from pathlib import Path

from bench.queue.processes import ClientProcess, environment, start_worker
from bench.queue.running import Running
from bench.queue.system import STAGES, Case, Setting, SystemMissing

LIBRARIES = ("ardiq", "huey", "dramatiq", "saq", "taskiq", "streaq", "rq")


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


class Chain(Running):
    """A library's three workers and its client."""

    def __init__(self, case: Case, setting: Setting) -> None:
        home = Path(sys.prefix) if case.system == "floor" else setting.venvs / case.system
        self.bin = home.absolute() / "bin"
        if not (self.bin / "python").exists():
            raise SystemMissing(f"{home} does not exist: run bench/venvs.sh {setting.venvs}")
        self.module = "bench.queue.floor" if case.system == "floor" else f"bench.queue.chain_{case.system}"
        env = environment(
            {
                "BENCH_REDIS_URL": setting.redis_url,
                "BENCH_SCRATCH_DIR": str(setting.scratch),
                "BENCH_PAYLOAD_BYTES": str(case.payload_bytes),
                **case.options,
            }
        )
        super().__init__(case, setting, env)

    def start(self) -> None:
        for stage in STAGES:
            program, *arguments = worker_command(self.case.system, stage, self.case, self.setting.redis_url)
            argv = [str(self.bin / program), *arguments]
            self.workers[stage] = [
                start_worker(argv, self.env, self.log(stage)) for _ in range(self.case.workers_per_stage)
            ]

    def make_client(self) -> ClientProcess:
        return ClientProcess(self.bin / "python", self.module, self.env, self.setting.scratch / "client.log")
