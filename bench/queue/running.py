"""What every measured system is made of: its processes, its logs, the marks of finished jobs, and a client."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.queue.processes import ClientProcess, Process, last_words, stop_workers
from bench.queue.system import Case, Setting, Submitted, SystemFailed

LATENCY_TIMEOUT_S = 60.0


class Running:
    """A system's processes by role. What starts them, and which client asks them, is each system's own."""

    def __init__(self, case: Case, setting: Setting, env: Mapping[str, str]) -> None:
        self.case, self.setting, self.env = case, setting, env
        self.done = setting.scratch / "done"
        self.done.touch()
        self.workers: dict[str, list[Process]] = {}
        self.client: ClientProcess | None = None

    def make_client(self) -> ClientProcess:
        raise NotImplementedError

    def log(self, role: str) -> Path:
        return self.setting.scratch / f"{role}.log"

    def processes(self) -> Mapping[str, Sequence[int]]:
        for role, processes in self.workers.items():
            for process in processes:
                if process.poll() is not None:
                    words = last_words(self.log(role))
                    raise SystemFailed(f"{self.case.name}: the {role} process ended with {process.returncode}: {words}")
        return {role: [process.pid for process in processes] for role, processes in self.workers.items()}

    def ask(self, what: str, jobs: int, timeout_s: float) -> dict[str, object]:
        self.client = self.client or self.make_client()
        return self.client.ask({"do": what, "jobs": jobs}, timeout_s)

    def submit(self, jobs: int) -> Submitted:
        answer = self.ask("submit", jobs, 120.0 + jobs / 1000)
        return Submitted(
            seconds=float(str(answer["seconds"])),
            cpu_s=float(str(answer["cpu_s"])),
            requests=int(str(answer["requests"])),
        )

    def finished(self) -> int:
        return self.done.stat().st_size

    def latency(self, jobs: int) -> Sequence[float]:
        return self._seconds("latency", jobs)

    def records(self, jobs: int) -> Sequence[float]:
        """Seconds of lone jobs until their records were in the client's hands; of ours alone."""
        return self._seconds("records", jobs)

    def _seconds(self, what: str, jobs: int) -> Sequence[float]:
        seconds = self.ask(what, jobs, LATENCY_TIMEOUT_S)["latency_s"]
        assert isinstance(seconds, list)
        return [float(each) for each in seconds]

    def stop(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None
        stop_workers([process for processes in self.workers.values() for process in processes])
        self.workers = {}
