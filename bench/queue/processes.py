"""Processes that a benchmark starts: workers, a client that answers requests, and their end."""

import contextlib
import json
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import measure
from bench.queue.system import SystemFailed
from bench.redis_server import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 4.0
Process = subprocess.Popen[bytes]


def environment(extra: Mapping[str, str], python_path: Sequence[Path] = ()) -> dict[str, str]:
    """This process's environment, with the repository importable."""
    path = os.pathsep.join(map(str, (*python_path, ROOT)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1", **extra}


def start_worker(argv: Sequence[str], env: Mapping[str, str], log: Path) -> Process:
    """A process in a session of its own, with its output in a file."""
    with log.open("ab") as out:
        return subprocess.Popen(
            argv, cwd=log.parent, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True, preexec_fn=die_with_parent,  # noqa: PLW1509
        )  # fmt: skip


def last_words(log: Path, length: int = 600) -> str:
    with contextlib.suppress(FileNotFoundError):
        return log.read_text(errors="replace")[-length:].strip()
    return ""


def signal_trees(pids: Sequence[int], number: signal.Signals) -> None:
    """To each process and all of its living descendants."""
    for root in pids:
        for pid in measure.process_tree(root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def open_pids(pids: Sequence[int]) -> Iterator[int]:
    """A descriptor for each living process: it never means another one that got the same number later."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            yield os.pidfd_open(pid)


def stop_workers(workers: Sequence[Process]) -> None:
    """SIGTERM to the process groups, one grace period for all, then SIGKILL, also to descendants that left a group."""
    descendants = [opened for worker in workers for opened in open_pids(measure.process_tree(worker.pid)[1:])]
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    for descriptor in descendants:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [], GRACE_S)  # readable once the process is dead
        os.close(descriptor)


class ClientProcess:
    """A client in a process of its own, asked over its standard input (see `bench.queue.client`)."""

    def __init__(self, python: Path, module: str, env: Mapping[str, str], log: Path) -> None:
        self.module, self.log = module, log
        argv = [str(python), "-m", "bench.queue.client", module]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                argv, cwd=log.parent, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out,
                start_new_session=True, preexec_fn=die_with_parent, bufsize=0,  # noqa: PLW1509
            )  # fmt: skip
        self.pending = b""
        self.read_answer(30.0)

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise SystemFailed(f"the client of {self.module} is gone: {last_words(self.log)}") from None
        return self.read_answer(timeout_s)

    def read_answer(self, timeout_s: float) -> dict[str, Any]:
        """The next answer; other lines that a library prints are skipped."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                line, newline, rest = self.pending.partition(b"\n")
                if newline:
                    self.pending = rest
                    if line.startswith(b"ANSWER "):
                        found: dict[str, Any] = json.loads(line.removeprefix(b"ANSWER "))
                        return found
                    continue
                if not selector.select(timeout_s):
                    raise SystemFailed(f"the client of {self.module} gave no answer within {timeout_s:.0f} s")
                piece = self.process.stdout.read(65536)
                if not piece:
                    raise SystemFailed(f"the client of {self.module} ended: {last_words(self.log)}")
                self.pending += piece

    def close(self) -> None:
        """End of input is its signal to leave."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
