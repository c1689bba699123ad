"""The same kills on other queues: rq, dramatiq and ardiq with a chain of two jobs, each started as it says itself."""

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import redis

from bench.chaos import account
from bench.chaos.account import Injury
from bench.chaos.ours import Row
from bench.chaos.system import LEASE_MS, load_average
from bench.redis_server import die_with_parent
from prorl_mq.process import redis_server
from prorl_mq.process.ports import free_port
from tests.support.world import ROOT

WORKERS: Final = 4
REST_S: Final = 2.0
STOP_S: Final = 1.8 * LEASE_MS / 1000


class Peer(NamedTuple):
    """How a library's worker is started, and how long after the last progress its lost jobs may come back."""

    name: str
    worker: tuple[str, ...]
    patience_s: float

    @property
    def kinds(self) -> Sequence[str]:
        return tuple(KILLS)

    def suffer(self, kind: str, venvs: Path, jobs: int, seconds: float, seed: int) -> Row:
        """Raises `FileNotFoundError` if the library is not installed."""
        with tempfile.TemporaryDirectory(prefix="pq") as name:
            site = Site(self, installed(self.name, venvs), Path(name), jobs, jobs / seconds)
            with _running(site):
                return _suffered(site, kind, jobs, seed)


class Program(NamedTuple):
    """A system that is no queue on Redis: a program in its environment disturbs it, and says what that has cost."""

    name: str
    kinds: tuple[str, ...]

    def suffer(self, kind: str, venvs: Path, jobs: int, seconds: float, _seed: int) -> Row:
        """Raises `FileNotFoundError` if it is not installed, `RuntimeError` with its last words if it fails."""
        python = installed(self.name, venvs) / "python"
        with tempfile.TemporaryDirectory(prefix="pq") as name:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "CHAOS_MARKS": f"{name}/marks"}
            argv = [python, "-m", f"bench.chaos.peer_{self.name}", kind, str(jobs), str(seconds), str(free_port())]
            began = time.monotonic()
            done = subprocess.run(
                argv, env=environment, cwd=name, capture_output=True, check=False, timeout=300, start_new_session=True
            )
        if done.returncode:
            raise RuntimeError(done.stderr.decode(errors="replace")[-800:])
        said = json.loads(done.stdout.splitlines()[-1])
        took, times = time.monotonic() - began, said.pop("recovery")
        ended = sorted(each for each in times if each is not None)
        return Row(
            system=self.name,
            kind=kind,
            recovery_median_s=round(ended[len(ended) // 2], 1) if ended else None,
            recovery_worst_s=round(ended[-1], 1) if ended and None not in times else None,
            seconds=round(took, 1),
            load=load_average(),
            **said,
        )


def installed(name: str, venvs: Path) -> Path:
    """The programs of an environment. Raises `FileNotFoundError`."""
    found = (venvs / name / "bin").absolute()
    if not (found / "python").exists():
        raise FileNotFoundError(f"it is not installed in {venvs}")
    return found


PEERS: Final = (
    Peer("rq", ("rq", "worker", "-q", "-w", "rq.worker.SimpleWorker", "--maintenance-interval", "5", "chaos"), 90),
    Peer("dramatiq", ("dramatiq", "bench.chaos.peer_dramatiq", "-p", "1", "-t", "4", "-Q", "default"), 60),
    Peer("ardiq", ("ardiq", "run", "--quiet", "bench.chaos.peer_ardiq:app"), 60),
    Program("verifiers", ("worker killed", "worker stopped")),
    Program("agl", ("server killed", "server stopped")),
)


class Site:
    """One library's workers on a Redis of its own."""

    def __init__(self, peer: Peer, bin_: Path, directory: Path, jobs: int, pace: float) -> None:
        self.peer, self.bin, self.directory = peer, bin_, directory
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis.from_url(self.url)
        self.marks = directory / "marks"
        self.marks.touch()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CHAOS_MARKS": str(self.marks),
            "CHAOS_REDIS_URL": self.url,
            "CHAOS_JOBS": str(jobs),
            "CHAOS_PACE": str(pace),
        }
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_redis(self) -> None:
        options = ["--port", str(self.port), "--appendfsync", "always"]
        self.redis = redis_server.start(redis_server.find_binary(), self.directory, options)
        until(self._answers, within_s=60)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def start_worker(self, place: int) -> None:
        program, *arguments = self.peer.worker
        if program == "rq":
            arguments[1:1] = ["--url", self.url]
        process = self.start(f"worker-{place}", [str(self.bin / program), *arguments])
        self.workers[place:] = [process, *self.workers[place + 1 :]]

    def start_client(self) -> "subprocess.Popen[bytes]":
        module = f"bench.chaos.peer_{self.peer.name}"
        return self.start("client", [str(self.bin / "python"), "-c", f"from {module} import send; send()"])

    def start(self, name: str, argv: list[str]) -> "subprocess.Popen[bytes]":
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                argv,
                env=self.environment,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one libc call
            )

    def count(self, what: str) -> int:
        return len({mark.job for mark in account.marks(self.marks) if mark.what == what})

    def entries(self) -> int:
        """Members of all keys that have no time to live."""
        sizes: Mapping[bytes, Callable[[bytes], object]] = {
            b"list": self.client.llen, b"set": self.client.scard, b"zset": self.client.zcard,
            b"stream": self.client.xlen,
        }  # fmt: skip
        kept = [key for key in self.client.keys("*") if self.client.pttl(key) == -1]
        return sum(int(str(sizes.get(self.client.type(key), lambda _: 1)(key))) for key in kept)


def kill_worker(site: Site, rng: random.Random) -> float:
    place = rng.randrange(WORKERS)
    os.killpg(site.workers[place].pid, signal.SIGKILL)
    site.workers[place].wait()
    over = time.monotonic()
    site.start_worker(place)
    return over


def stop_worker(site: Site, rng: random.Random) -> float:
    pid = site.workers[rng.randrange(WORKERS)].pid
    os.killpg(pid, signal.SIGSTOP)
    time.sleep(STOP_S)
    os.killpg(pid, signal.SIGCONT)
    return time.monotonic()


def kill_redis(site: Site, rng: random.Random) -> float:
    """A worker that ends because of it is started again, as a service manager would."""
    site.redis.kill()
    site.redis.wait()
    site.start_redis()
    time.sleep(rng.uniform(0, 0.5))
    for place, worker in enumerate(site.workers):
        if worker.poll() is not None:
            site.start_worker(place)
    return time.monotonic()


KILLS: Final[Mapping[str, Callable[[Site, random.Random], float]]] = {
    "worker killed": kill_worker,
    "Redis killed": kill_redis,
    "worker stopped": stop_worker,
}


@contextmanager
def _running(site: Site) -> Iterator[None]:
    site.start_redis()
    for place in range(WORKERS):
        site.start_worker(place)
    try:
        yield
    finally:
        for worker in site.workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
        site.client.close()
        redis_server.stop(site.redis)


def _suffered(site: Site, kind: str, jobs: int, seed: int) -> Row:
    time.sleep(5.0)  # for workers to register themselves
    before, began, rng = site.entries(), time.monotonic(), random.Random(seed)
    injuries, sender = list[Injury](), site.start_client()
    until(lambda: site.count("end") >= jobs // 20, within_s=120)
    while not injuries or sender.poll() is None:
        at = time.monotonic()
        injuries.append(Injury(at, KILLS[kind](site, rng)))
        time.sleep(REST_S * rng.uniform(0.7, 1.3))
    _settled(site, jobs)
    took = time.monotonic() - began
    found = account.marks(site.marks)
    sent = {mark.job for mark in found if mark.what == "sent"}
    ends = Counter(mark.job for mark in found if mark.what == "end")
    times = account.recovery_s([mark for mark in found if mark.what != "sent"], injuries)
    ended = sorted(each for each in times if each is not None)
    return Row(
        system=site.peer.name,
        kind=kind,
        jobs=len(sent),
        faults=len(injuries),
        lost=len(sent - ends.keys()),
        duplicated=ends.total() - len(ends),
        doubled=account.doubled(found),
        left_over=max(0, site.entries() - before),
        recovery_median_s=round(ended[len(ended) // 2], 1) if ended else None,
        recovery_worst_s=round(ended[-1], 1) if ended and None not in times else None,
        seconds=round(took, 1),
        load=load_average(),
    )


def _settled(site: Site, jobs: int) -> None:
    """Until all have ended, or none has for as long as the library may need."""
    last, since = -1, time.monotonic()
    while (now := site.count("end")) < jobs and time.monotonic() - since < site.peer.patience_s:
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.5)
    time.sleep(2.0)


def until(true: Callable[[], bool], *, within_s: float) -> None:
    give_up = time.monotonic() + within_s
    while not true() and time.monotonic() < give_up:
        time.sleep(0.05)
