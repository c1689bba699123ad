"""Starts and stops a vLLM, with the settings of ops/vllm-serve.sh: a server of a benchmark's or of the tests' own."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from prorl_mq.process.ports import free_port

SERVE = Path(__file__).parents[1] / "ops/vllm-serve.sh"
READY_S = 300  # half a minute on an idle machine; cores that others use make it minutes


class VllmFailed(Exception):
    """It did not come up; the message has its last words."""


@contextlib.contextmanager
def serving(model: Path, log: Path, *options: str) -> Iterator[str]:
    """The address of a vLLM that answers."""
    port = free_port()
    with log.open("wb") as sink:
        command = [str(SERVE), str(model), str(port), *options]
        process = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
    try:
        _wait_ready(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"{address}/health", timeout=5),
        ):
            return
        try:  # vLLM gives no sign of being ready but an answer: ask twice a second, unless it ends first
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
        break
    raise VllmFailed(f"vLLM did not start within {READY_S} s: {log.read_text()[-2000:]}")
