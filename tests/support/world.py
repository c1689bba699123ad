"""A whole service made of real processes that a test may kill: Redis, API, workers, a backend."""

import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from prorl_mq.process import redis_server
from prorl_mq.schema.messages import Stage
from prorl_mq.store.server.connection import RedisSettings

ROOT = Path(__file__).parent.parent.parent
PLUGIN = ROOT / "tests" / "chaos" / "plugin"


class World:
    """Starts, kills and restarts the processes of one service below one directory."""

    def __init__(
        self,
        directory: Path,
        *,
        lease_ms: int = 1_000,
        slots: int = 8,
        binary: str | None = None,
        redis_options: Sequence[str] = ("--appendfsync", "always"),
        sandbox: str = "none",
        handlers: str = "chaos",
        namespace: str = "prorl",
    ) -> None:
        self.directory = directory
        self.sandbox = sandbox
        self.handlers = handlers
        self.slots = slots
        self.lease_ms = lease_ms
        self.namespace = namespace
        self.redis_options = redis_options
        self.binary = binary or redis_server.find_binary()
        self.settings = RedisSettings(url=f"unix://{directory}/redis.sock", namespace=namespace)
        self.redis: subprocess.Popen[bytes] | None = None
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.apis: dict[str, subprocess.Popen[bytes]] = {}
        self.backend: subprocess.Popen[str] | None = None
        self.extra: dict[str, list[str]] = {}
        self.address = ""
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(PLUGIN), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
            ),
            "PRORL_LEASE_MS": str(lease_ms),
            "PRORL_REDIS": self.settings.url,
            "PRORL_NAMESPACE": namespace,
            "PRORL_LOG": "WARNING",
        }

    def start_redis(self) -> None:
        self.redis = redis_server.start(self.binary, self.directory, self.redis_options)

    def start_worker(self, stage: Stage, number: int = 0, *more: str) -> str:
        name = f"{stage}-{number}"
        more = more or tuple(self.extra.get(name, ()))
        self.extra[name] = list(more)
        argv = [sys.executable, "-m", "workers", "--stage", stage, "--slots", str(self.slots), "--node", "n0"]
        argv += ["--sandbox", self.sandbox, "--handlers", self.handlers, "--state-dir", str(self.directory / "state")]
        self.workers[name] = self.start(name, [*argv, *more])
        return name

    def start_keeper(self) -> None:
        """One of the node, killed and restarted by name like the workers."""
        argv = [sys.executable, "-m", "workers.node.keeper", "--node", "n0", "--sandbox", self.sandbox]
        self.workers["keeper-0"] = self.start("keeper-0", [*argv, "--state-dir", str(self.directory / "state")])

    def start_api(self, number: int = 0) -> str:
        name = f"api-{number}"
        uds = self.directory / f"{name}.sock"
        uds.unlink(missing_ok=True)
        self.apis[name] = self.start(name, [sys.executable, "-m", "api", "--uds", str(uds)])
        return name

    def start_compat(self, port: int) -> str:
        """The ProRL routes, on a port that stays the same over restarts."""
        argv = [sys.executable, "-m", "api", "--compat", "prorl", "--open", "--port", str(port)]
        argv += ["--compat-timeout", "120"]
        self.apis["compat"] = self.start("compat", argv)
        return "compat"

    def start_backend(self) -> str:
        argv = [sys.executable, "-m", "prorl_mq.testing.fake_backend", "--port", "0"]
        self.backend = subprocess.Popen(argv, env=self.env, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.backend.stdout is not None
        ready, _, _ = select.select([self.backend.stdout], [], [], 30)
        assert ready, "the fake backend did not start"
        found = re.search(r"http://\S+", self.backend.stdout.readline())
        assert found is not None
        self.address = found.group()
        return self.address

    def kill_redis(self) -> None:
        assert self.redis is not None
        self.redis.kill()
        self.redis.wait()

    def kill(self, name: str) -> None:
        process = self.workers.get(name) or self.apis[name]
        process.kill()
        process.wait()

    def restart(self, name: str) -> None:
        if name in self.apis:
            self.start_api(int(name.rpartition("-")[2]))
        elif name == "keeper-0":
            self.start_keeper()
        else:
            stage, _, number = name.rpartition("-")
            self.start_worker(Stage(stage), int(number))

    def freeze(self, name: str) -> None:
        (self.workers.get(name) or self.apis[name]).send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        (self.workers.get(name) or self.apis[name]).send_signal(signal.SIGCONT)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def stop(self) -> dict[str, int]:
        """Drains what lives; exit codes by name. Redis is stopped last."""
        codes: dict[str, int] = {}
        for group in (self.workers, self.apis):
            for process in group.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
                    process.terminate()
            for name, process in group.items():
                try:
                    codes[name] = process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    codes[name] = process.wait()
        if self.backend is not None:
            self.backend.kill()
            self.backend.wait()
            assert self.backend.stdout is not None
            self.backend.stdout.close()
        if self.redis is not None:
            redis_server.stop(self.redis)
        state = self.directory / "state"
        if any((state / "sandboxes").glob("*")):  # of a node that died, and whose next keeper nobody starts
            argv = [sys.executable, "-m", "sandbox", "sweep", "--state-dir", str(state)]
            subprocess.run(argv, env=self.env, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return codes

    def start(self, name: str, argv: list[str]) -> "subprocess.Popen[bytes]":
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(argv, env=self.env, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


class Killer:
    """Kills at seeded random moments until told to stop; what it did is kept for the message of a failure."""

    def __init__(
        self, world: World, seed: int, *, redis: bool = True, every_s: tuple[float, float] = (0.2, 0.9)
    ) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.redis = redis
        self.every_s = every_s
        self.done: list[str] = []
        self._frozen: list[tuple[float, str]] = []
        self._next = time.monotonic() + 1.0

    def step(self) -> None:
        """One look: thaws what has been frozen long enough, kills something when it is time."""
        now = time.monotonic()
        for due, name in [each for each in self._frozen if each[0] <= now]:
            self.world.thaw(name)
            self._frozen.remove((due, name))
        if now < self._next:
            return
        self._next = now + self.random.uniform(*self.every_s)
        names = [name for name in self.world.workers if name not in {frozen for _, frozen in self._frozen}]
        choice = self.random.random()
        if choice < 0.12 and self.redis:
            self.done.append("redis")
            self.world.kill_redis()
            self.world.start_redis()
        elif choice < 0.25:
            name = self.random.choice(sorted(self.world.apis))
            self.done.append(name)
            self.world.kill(name)
            self.world.restart(name)
        elif choice < 0.45 and names:
            name = self.random.choice(sorted(names))
            self.done.append(f"freeze {name}")
            self.world.freeze(name)
            self._frozen.append((now + 1.8 * self.world.lease_ms / 1000, name))
        elif names:
            name = self.random.choice(sorted(names))
            self.done.append(name)
            self.world.kill(name)
            self.world.restart(name)

    def calm(self) -> None:
        """Ends the disturbance: everything lives and runs again."""
        for _, name in self._frozen:
            self.world.thaw(name)
        self._frozen.clear()
