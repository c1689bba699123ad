"""This project as a system: `prorl-worker` for every stage, `prorl-api`, and a trainer that submits groups."""

import re
import sys
import time
from pathlib import Path

from bench.queue import noop
from bench.queue.processes import ClientProcess, Process, environment, last_words, start_worker, stop_workers
from bench.queue.running import Running
from bench.queue.system import STAGES, Case, Setting, SystemFailed

SLOTS = 128
START_S = 30.0


class Ours(Running):
    """The service under measurement, everything on: leases, fence, events, groups, verdicts."""

    def __init__(self, case: Case, setting: Setting) -> None:
        env = environment(
            {
                "BENCH_REDIS_URL": setting.redis_url,
                "BENCH_SCRATCH_DIR": str(setting.scratch),
                "BENCH_PAYLOAD_BYTES": str(case.payload_bytes),
            },
            [noop.write_entry_point(setting.scratch / "plugin")],
        )
        super().__init__(case, setting, env)
        self._viewers: Process | None = None

    def start(self) -> None:
        python = sys.executable
        api = [python, "-m", "api", "--redis", self.setting.redis_url, "--port", "0", "--open"]
        self.workers["api"] = [start_worker(api, self.env, self.log("api"))]
        for stage in STAGES:
            argv = [python, "-m", "workers", "--stage", stage, "--slots", str(SLOTS), "--node", "bench"]
            argv += ["--redis", self.setting.redis_url, "--sandbox", "none", "--handlers", "bench_noop"]
            self.workers[stage] = [
                start_worker(argv, self.env, self.log(stage)) for _ in range(self.case.workers_per_stage)
            ]

        if viewers := self.case.options.get("viewers"):
            argv = [python, "-m", "bench.queue.viewers", self._address(), viewers]
            self._viewers = start_worker(argv, self.env, self.log("viewers"))

    def stop(self) -> None:
        super().stop()
        if self._viewers is not None:
            stop_workers([self._viewers])

    def make_client(self) -> ClientProcess:
        door = self.setting.redis_url if self.case.options.get("door") == "stream" else self._address()
        env = {**self.env, "BENCH_DOOR": door}
        return ClientProcess(Path(sys.executable), "bench.queue.ours_client", env, self.setting.scratch / "client.log")

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
