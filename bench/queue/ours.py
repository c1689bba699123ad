"""This project as a system: `prorl-worker` for every stage, `prorl-api`, and a trainer that submits groups."""

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.queue import noop
from bench.queue.processes import ClientProcess, Process, environment, last_words, start_worker, stop_workers
from bench.queue.system import STAGES, Case, Setting, Submitted, SystemFailed

SLOTS = 128
START_S = 30.0
LATENCY_TIMEOUT_S = 60.0


class Ours:
    """The service under measurement, everything on: leases, fence, events, groups, verdicts."""

    def __init__(self, case: Case, setting: Setting) -> None:
        self.case, self.setting = case, setting
        self.env = environment(
            {
                "BENCH_REDIS_URL": setting.redis_url,
                "BENCH_SCRATCH_DIR": str(setting.scratch),
                "BENCH_PAYLOAD_BYTES": str(case.payload_bytes),
            },
            [noop.write_entry_point(setting.scratch / "plugin")],
        )
        self.done = setting.scratch / "done"
        self.done.touch()
        self.workers: dict[str, list[Process]] = {}
        self.client: ClientProcess | None = None

    def start(self) -> None:
        python = sys.executable
        api = [python, "-m", "api", "--redis", self.setting.redis_url, "--port", "0"]
        self.workers["api"] = [start_worker(api, self.env, self.log("api"))]
        for stage in STAGES:
            argv = [python, "-m", "workers", "--stage", stage, "--slots", str(SLOTS), "--node", "bench"]
            argv += ["--redis", self.setting.redis_url, "--sandbox", "none", "--handlers", "bench_noop"]
            self.workers[stage] = [
                start_worker(argv, self.env, self.log(stage)) for _ in range(self.case.workers_per_stage)
            ]

    def log(self, role: str) -> Path:
        return self.setting.scratch / f"{role}.log"

    def processes(self) -> Mapping[str, Sequence[int]]:
        for role, processes in self.workers.items():
            for process in processes:
                if process.poll() is not None:
                    words = last_words(self.log(role))
                    raise SystemFailed(f"{self.case.name}: the {role} process ended with {process.returncode}: {words}")
        return {role: [process.pid for process in processes] for role, processes in self.workers.items()}

    def submit(self, jobs: int) -> Submitted:
        answer = self._ask("submit", jobs, 120.0 + jobs / 1000)
        return Submitted(
            seconds=float(str(answer["seconds"])),
            cpu_s=float(str(answer["cpu_s"])),
            requests=int(str(answer["requests"])),
        )

    def finished(self) -> int:
        return self.done.stat().st_size

    def latency(self, jobs: int) -> Sequence[float]:
        seconds = self._ask("latency", jobs, LATENCY_TIMEOUT_S)["latency_s"]
        assert isinstance(seconds, list)
        return [float(each) for each in seconds]

    def stop(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None
        stop_workers([process for processes in self.workers.values() for process in processes])
        self.workers = {}

    def _ask(self, what: str, jobs: int, timeout_s: float) -> dict[str, object]:
        if self.client is None:
            door = self.setting.redis_url if self.case.options.get("door") == "stream" else self._address()
            env = {**self.env, "BENCH_DOOR": door}
            log = self.setting.scratch / "client.log"
            self.client = ClientProcess(Path(sys.executable), "bench.queue.ours_client", env, log)
        return self.client.ask({"do": what, "jobs": jobs}, timeout_s)

    def _address(self) -> str:
        """What the API says when it listens."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            found = re.search(r"http://\S+", self.log("api").read_text(errors="replace"))
            if found:
                return found.group()
            self.processes()
            time.sleep(0.02)
        raise SystemFailed(f"the API did not start within {START_S:.0f} s: {last_words(self.log('api'))}")
