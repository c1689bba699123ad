"""A service started by `prorl-mq up`, with a tokenizer and a backend for it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.chat import MARKERS, TOOLED, tokenizer

ROOT = Path(__file__).parents[2]
START_S = 240.0
ANSWER = "The answer is <answer>7</answer>"


def command(*words: object) -> list[str]:
    return [sys.executable, "-c", "import sys; from prorl_mq.cli import main; sys.exit(main())", *map(str, words)]


def prorl(*words: object, timeout: float = 240) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=timeout, check=False)


class Up:
    """A running `prorl-mq up`, and what it has said."""

    def __init__(self, state: Path, *options: object, dashboard: bool = False) -> None:
        self.state = state
        argv = command("up", "--state-dir", state, "--port", "0", *options, *([] if dashboard else ["--no-dashboard"]))
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        self.said = ""

    def wait_for(self, text: str) -> str:
        """Reads until the text has been said; fails if the process ends before."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_S
        while text not in self.said:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert chunk, f"{text!r} was not said:\n{self.said}"
            self.said += chunk.decode()
        return self.said

    @property
    def url(self) -> str:
        return self.wait_for("Ctrl-C drains").partition("API ")[2].split()[0]

    @property
    def token(self) -> str:
        return (self.state / "token").read_text()

    @property
    def headers(self) -> dict[str, str]:
        """Of a request without the client, which finds the token by itself."""
        return {"Authorization": f"Bearer {self.token}"}

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signals it, and reads what it says until its end."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        code = self.process.wait(START_S)
        self.said += self.process.stdout.read().decode(errors="replace")
        self.process.stdout.close()
        return code


def below(pid: int) -> list[int]:
    """Every process that this one has started, and what those have."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return found + [pid for child in list(found) for pid in below(child)]


def names(pids: list[int]) -> dict[int, str]:
    """Those that have not ended since they were looked for."""
    found: dict[int, str] = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
    return found


@contextlib.contextmanager
def watched(pids: list[int]) -> Iterator[Callable[[float], list[int]]]:
    """Descriptors of these very processes; the function waits for their ends and answers who has not ended."""
    descriptors: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptors[pid] = os.pidfd_open(pid)

    def left(within_s: float) -> list[int]:
        deadline = time.monotonic() + within_s
        waiting = dict(descriptors)
        while waiting and time.monotonic() < deadline:
            ended, _, _ = select.select(list(waiting.values()), [], [], max(0.0, deadline - time.monotonic()))
            waiting = {pid: descriptor for pid, descriptor in waiting.items() if descriptor not in ended}
        return list(waiting)

    try:
        yield left
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer(TOOLED, MARKERS).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def start_backend(tokenizer_dir: Path) -> Iterator[Callable[..., str]]:
    """Starts a backend that gives an answer at once, unless the options say otherwise."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: object) -> str:
        argv = [sys.executable, "-m", "prorl_mq.testing.fake_backend", "--tokenizer", str(tokenizer_dir)]
        argv += [*(() if "--text" in options else ("--text", ANSWER)), *map(str, options)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        return process.stdout.readline().decode().strip()

    yield start
    for process in started:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def state() -> Iterator[Path]:
    """Short enough for Unix sockets, and passable for sandboxes' users."""
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "state"


@pytest.fixture
def up(state: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Up]]:
    """Starts services that end with the test; commands and clients of the test find their token."""
    monkeypatch.setenv("PRORL_STATE", str(state))
    started: list[Up] = []

    def start(*options: object, dashboard: bool = False) -> Up:
        started.append(Up(state, "--tokenizer", tokenizer_dir, *options, dashboard=dashboard))
        return started[-1]

    yield start
    for service in started:
        if service.process.poll() is None:
            service.end()


@pytest.fixture
def tasks(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of small sums."""

    def write(count: int = 2, **payload: object) -> Path:
        path = tmp_path / "sums.jsonl"
        rows = [
            {"task_id": f"sum-{seed}", "data_source": "reasoning_gym", "payload": {"name": "chain_sum", "seed": seed}}
            for seed in range(count)
        ]
        for row in rows:
            row["payload"] |= {"size": 1, "tools": False, **payload}  # type: ignore[operator]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
