"""The service under test: real Redis, API, workers, backend and trainer, with everything that can be disturbed."""

import asyncio
import contextlib
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.chaos import client
from bench.chaos.client import GROUPS, N
from bench.chaos.disturb import Disturbance
from bench.chaos.proxy import Proxy, proxied
from bench.redis_server import die_with_parent
from prorl_mq.schema.messages import Stage
from tests.support.world import ROOT, World

LEASE_MS: Final = 2_000
DISK_BYTES: Final = 512 << 20
PLUGIN: Final = Path(__file__).with_name("plugin")
SERVER: Final = """#!/bin/sh
exec unshare --user --map-root-user --mount sh -c 'mount -t tmpfs -o size={size} none {disk} && exec "$@"' sh \\
  env {preload} {binary} "$@"
"""
PLAIN: Final = """#!/bin/sh
exec env {preload} {binary} "$@"
"""


class System(World):
    """A `World` whose server has a disk of its own and a disturbed clock, and whose trainer is a process as well."""

    def __init__(
        self, directory: Path, *, small_disk: bool = False, appendfsync: str = "always", binary: str | None = None
    ) -> None:
        super().__init__(directory, lease_ms=LEASE_MS, handlers="marked", binary=binary)
        self.marks, self.journal = directory / "marks", directory / "journal"
        self.marks.touch()
        self.server, self.clocks = Disturbance(directory / "server"), Disturbance(directory / "workers")
        self.disk = directory / "disk"
        self.disk.mkdir()
        self.redis_options = ["--appendfsync", appendfsync, "--dir", str(self.disk)]
        self.binary = self._script(small_disk=small_disk)
        self.proxy: Proxy | None = None
        self.trainer: subprocess.Popen[bytes] | None = None
        self.run, self.batches, self.pace = "", 0, 1.0
        self.env |= {"PYTHONPATH": f"{PLUGIN}:{ROOT}", "CHAOS_MARKS": str(self.marks)}

    def _script(self, *, small_disk: bool) -> str:
        preload = " ".join(shlex.quote(f"{name}={value}") for name, value in self.server.environment.items())
        text = (SERVER if small_disk else PLAIN).format(
            size=DISK_BYTES, disk=self.disk, preload=preload, binary=self.binary
        )
        script = self.directory / "redis"
        script.write_text(text)
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return str(script)

    def start(self, name: str, argv: list[str]) -> "subprocess.Popen[bytes]":
        disturbed = self.clocks.environment if name in self.clocked else {}
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                argv,
                env=self.env | disturbed,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # each has a share of the cores of its own, as on machines of its own
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one libc call
            )

    @property
    def clocked(self) -> set[str]:
        """Processes whose clock may be stepped."""
        return {f"{stage}-0" for stage in Stage}

    def prepare(self, run: str, jobs: int, seconds: float) -> None:
        """A new run for the next trainer, of so many jobs at least, submitted within so many seconds."""
        self.run, self.journal = run, self.directory / f"journal-{run}"
        self.batches = max(1, -(-jobs // (N * GROUPS)))
        self.pace = self.batches * N * GROUPS / seconds

    @property
    def groups(self) -> list[str]:
        """Names of all groups of the run."""
        return [f"b{number}-{place}" for number in range(self.batches) for place in range(GROUPS)]

    def start_trainer(self) -> None:
        argv = [
            sys.executable,
            "-m",
            "bench.chaos.client",
            str(self.directory / "api-0.sock"),
            str(self.journal),
            self.run,
        ]
        argv += ["--batches", str(self.batches), "--pace", str(self.pace)]
        self.trainer = self.start("trainer", argv)

    def kill_trainer(self) -> None:
        if self.trainer is not None:
            self.trainer.kill()
            self.trainer.wait()

    async def serves(self, name: str) -> bool:
        """Whether an API process takes connections. Raises `RuntimeError` if it has ended."""
        if self.apis[name].poll() is not None:
            raise RuntimeError(f"{name} has ended: {self.log(name)[-2000:]}")
        try:
            _, writer = await asyncio.open_unix_connection(self.directory / f"{name}.sock")
        except OSError:
            return False
        writer.close()
        return True

    async def served(self) -> bool:
        """Whether all API processes take connections."""
        return all([await self.serves(name) for name in self.apis])

    def signal_redis(self, number: signal.Signals) -> None:
        assert self.redis is not None
        self.redis.send_signal(number)

    def on_disk(self) -> Path:
        """The server's disk as this process reaches it."""
        assert self.redis is not None
        seen = Path(f"/proc/{self.redis.pid}/root{self.disk}")
        return seen if seen.exists() else self.disk

    def read(self) -> int:
        """Groups that the trainer has read. Raises `RuntimeError` if it ended by a fault of its own."""
        if self.trainer is not None and (self.trainer.poll() or 0) > 0:
            raise RuntimeError(f"the trainer has ended: {self.log('trainer')[-2000:]}")
        return len({entry.group for entry in client.read(self.journal) if entry.group})

    def stop(self) -> dict[str, int]:
        self.kill_trainer()
        return super().stop()


@contextlib.asynccontextmanager
async def through_proxy(system: System, seed: int) -> AsyncIterator[None]:
    """Processes that start from here on reach Redis through a proxy; the measurement does not."""
    at = system.directory / "proxy.sock"
    async with proxied(system.directory / "redis.sock", at, seed) as proxy:
        system.proxy = proxy
        system.env["PRORL_REDIS"] = f"unix://{at}"
        yield


async def finished(system: System, groups: int, *, within_s: float) -> bool:
    """Whether the trainer has read so many groups in time."""
    give_up = time.monotonic() + within_s
    while system.read() < groups:
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(0.1)
    return True


def load_average() -> float:
    return round(os.getloadavg()[0], 1)
