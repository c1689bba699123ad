"""The kinds of faults: each is injected again and again while a trainer works, and is over when its call returns."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError

from bench.chaos.system import System
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import OUTAGES, ask, connect
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living
from tests.support.service import until

NOBODY: Final = ("127.0.0.1", "1")  # a master that is never reached: the server keeps what it has
BACK_S: Final = 120.0  # how long the start of a process may take
FAULTS: Final = (*OUTAGES, RedisError)


class Scene(NamedTuple):
    """What a fault acts on."""

    system: System
    random: random.Random
    store: Store  # straight to the server, as is the connection
    redis: Redis


class Kind(NamedTuple):
    """A kind of fault. `rest_s`: how long the system is left alone between two of them."""

    name: str
    what: str
    injure: Callable[[Scene], Awaitable[float]]
    rest_s: float = 1.0
    share: float = 1.0  # of the jobs that another kind gets
    proxied: bool = False
    small_disk: bool = False
    appendfsync: str = "always"


async def kill_worker(scene: Scene) -> float:
    """The next one is killed when this one is back: else no worker would be left where a start takes long."""
    name = scene.random.choice(sorted(scene.system.workers))
    scene.system.kill(name)
    over = time.monotonic()
    scene.system.restart(name)
    await until(lambda: _announced(scene, name), within_s=BACK_S)
    return over


async def _announced(scene: Scene, name: str) -> bool:
    return scene.system.workers[name].pid in {worker.pid for worker in await living(scene.store)}


async def kill_api(scene: Scene) -> float:
    name = scene.random.choice(sorted(scene.system.apis))
    scene.system.kill(name)
    over = time.monotonic()
    scene.system.restart(name)
    await until(lambda: scene.system.serves(name), within_s=BACK_S)
    return over


async def kill_redis(scene: Scene) -> float:
    scene.system.kill_redis()
    scene.system.start_redis()
    await answers(scene)
    return time.monotonic()


async def kill_trainer(scene: Scene) -> float:
    """The next one is killed when this one has done something."""
    scene.system.kill_trainer()
    over, written = time.monotonic(), scene.system.journal.stat().st_size
    scene.system.start_trainer()
    await until(lambda: _wrote(scene, written), within_s=BACK_S)
    return over


async def _wrote(scene: Scene, before: int) -> bool:
    return scene.system.journal.stat().st_size > before or scene.system.read() == len(scene.system.groups)


async def stop_worker(scene: Scene) -> float:
    name = scene.random.choice(sorted(scene.system.workers))
    scene.system.freeze(name)
    await asyncio.sleep(1.8 * scene.system.lease_ms / 1000)
    scene.system.thaw(name)
    return time.monotonic()


async def stop_redis(scene: Scene) -> float:
    scene.system.signal_redis(signal.SIGSTOP)
    await asyncio.sleep(scene.random.uniform(0.5, 2.0) * scene.system.lease_ms / 1000)
    scene.system.signal_redis(signal.SIGCONT)
    return time.monotonic()


async def half_open(scene: Scene) -> float:
    assert scene.system.proxy is not None
    scene.system.proxy.fall_silent()
    return time.monotonic()


async def drop_replies(scene: Scene) -> float:
    assert scene.system.proxy is not None
    scene.system.proxy.lost_share = 0.05
    await asyncio.sleep(1.0)
    scene.system.proxy.lost_share = 0.0
    return time.monotonic()


async def delay_replies(scene: Scene) -> float:
    assert scene.system.proxy is not None
    scene.system.proxy.delay_s = (0.0, 1.5)
    await asyncio.sleep(3.0)
    scene.system.proxy.delay_s = (0.0, 0.0)
    return time.monotonic()


async def fill_disk(scene: Scene) -> float:
    """Until nothing more fits, for two seconds after the server has noticed."""
    file = scene.system.on_disk() / "filler"
    await asyncio.to_thread(_fill, str(file))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while not await _refuses(scene):
                await asyncio.sleep(0.05)
    await asyncio.sleep(2.0)
    await asyncio.to_thread(file.unlink)
    await answers(scene)
    return time.monotonic()


def _fill(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    for size in (1 << 20, 1 << 12, 1):
        with contextlib.suppress(OSError):
            while True:
                os.write(file, bytes(size))
    os.close(file)


async def _refuses(scene: Scene) -> bool:
    try:
        await ask(scene.redis, "SET", "chaos:probe", "x", "PX", 1000)
    except FAULTS as error:
        return "MISCONF" in str(error)
    return False


async def fill_memory(scene: Scene) -> float:
    """The limit is put where the memory is now, for two seconds."""
    used = (await fitness.info(scene.redis, "memory"))["used_memory"]
    await ask(scene.redis, "CONFIG", "SET", "maxmemory", used)
    await asyncio.sleep(2.0)
    await ask(scene.redis, "CONFIG", "SET", "maxmemory", 0)
    return time.monotonic()


async def change_role(scene: Scene) -> float:
    await ask(scene.redis, "REPLICAOF", *NOBODY)
    await asyncio.sleep(1.5)
    await ask(scene.redis, "REPLICAOF", "NO", "ONE")
    return time.monotonic()


async def step_redis_clock(scene: Scene) -> float:
    scene.system.server.set_clock(scene.random.choice([-3600, -20, -3, 3, 20, 3600]))
    return time.monotonic()


async def step_worker_clock(scene: Scene) -> float:
    """One worker of each stage: the other ones keep the time."""
    scene.system.clocks.set_clock(scene.random.choice([-3600, -20, -3, 3, 20, 3600]))
    return time.monotonic()


async def slow_fsync(scene: Scene) -> float:
    scene.system.server.set_fsync(1.5)
    await asyncio.sleep(5.0)
    scene.system.server.set_fsync(0.0)
    return time.monotonic()


async def answers(scene: Scene) -> None:
    """Until the server takes writes again."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(*FAULTS):
                await ask(scene.redis, "SET", "chaos:probe", "x", "PX", 1000)
                return
            await asyncio.sleep(0.02)


KINDS: Final = (
    Kind("worker killed", "SIGKILL of any worker, which is started again", kill_worker, 0.5),
    Kind("API killed", "SIGKILL of one of two API processes, with its duties", kill_api),
    Kind("Redis killed", "SIGKILL of Redis, `appendfsync always`", kill_redis, 3.0),
    Kind("trainer killed", "SIGKILL of the trainer, which reads its journal and continues", kill_trainer),
    Kind("worker stopped", "SIGSTOP of any worker for 1.8 leases", stop_worker),
    Kind("Redis stopped", "SIGSTOP of Redis for 1 to 4 s", stop_redis, 3.0),
    Kind("half-open connections", "every connection stays open and is dead", half_open, 12.0, 0.15, proxied=True),
    Kind("replies dropped", "for 1 s, 5 % of replies and their connections", drop_replies, 1.0, 0.15, proxied=True),
    Kind("replies delayed", "3 s in which each reply comes up to 1.5 s late", delay_replies, 1.0, 0.15, proxied=True),
    Kind("disk full", "Redis's disk is full for 2 s", fill_disk, 3.0, 0.3, small_disk=True, appendfsync="everysec"),
    Kind("memory full", "`maxmemory` is reached for 2 s", fill_memory, 2.0),
    Kind("role changed", "Redis is for 1.5 s a replica of a server that does not exist", change_role, 3.0),
    Kind("clock of Redis", "steps by 3 s, 20 s or an hour, forward and back", step_redis_clock, 4.0),
    Kind("clock of workers", "the same for one worker of each stage", step_worker_clock, 2.0),
    Kind("slow fsync", "each fsync takes 1.5 s for 5 s, `everysec`", slow_fsync, 2.0, appendfsync="everysec"),
)  # fmt: skip


def client(system: System) -> Redis:
    """A connection of the measurement's own."""
    return connect(system.settings)
