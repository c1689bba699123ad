"""Redis passes from one job to the next: the next one is there before the first one ends."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from prorl_mq.schema import rendezvous
from prorl_mq.store.server.connection import RedisClient, RedisSettings, ask, connect, patiently
from slurm import commands
from slurm.servers.redis_data import RedisData
from slurm.supervisor.lock import WatchLock
from tests.slurm.conftest import Fake
from tests.support.service import until
from tests.support.world import ROOT

SOAK = "PRORL_SOAK" in os.environ  # `make test-slurm` hands over twice, and with TLS
pytestmark = [pytest.mark.anyio, pytest.mark.process, pytest.mark.timeout(120)]


AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a Redis task of the deployment, as a job of Slurm on a node of its own; it ends with the test."""
    processes = list[asyncio.subprocess.Process]()

    async def start(job: str, path: str, *options: str) -> asyncio.subprocess.Process:
        argv = [sys.executable, "-m", "slurm.redis_task", "--shared", str(tmp_path / "shared"), "--interface", "lo"]
        argv += options
        state = tmp_path / "scratch" / ("long-" * 25) / job
        state.mkdir(parents=True)
        env = {**os.environ, "PRORL_STATE": str(state), "SLURM_JOB_ID": job, "PATH": path}
        made = await asyncio.create_subprocess_exec(*argv, env=env, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
        processes.append(made)
        return made

    yield start
    for each in processes:
        if each.returncode is None:
            each.terminate()
            await each.wait()


def squeue(tmp_path: Path, state: str, *, refuses: bool = False) -> str:
    """A PATH on which Slurm says this of any job."""
    program = tmp_path / "bin" / "squeue"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{state}' {'>&2; exit 1' if refuses else ''}\n")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


async def test_the_next_job_takes_over_what_the_first_one_had_when_that_one_ends(
    tmp_path: Path, started: Start
) -> None:
    """Where the node's scratch is too long for a socket, too."""
    file, path = tmp_path / "shared" / "rendezvous" / "ingress.json", squeue(tmp_path, "COMPLETED")
    first = await started("1", path)
    await until(lambda: _is(file.exists), within_s=60)
    settings = RedisSettings(rendezvous=file)
    redis = connect(settings, connections=1)
    await asked(redis, "SET", "{prorl}:kept", "1")
    before = file.read_text()
    second = await started("2", path)
    assert second.stderr is not None
    async with asyncio.timeout(60):
        assert b"this one starts when that one has ended" in await second.stderr.readline()
    assert await asked(redis, "GET", "{prorl}:kept") == b"1"
    first.send_signal(signal.SIGTERM)
    await until(lambda: _is(lambda: file.read_text() != before), within_s=60)
    rendezvous.read(file)
    again = connect(settings, connections=1)
    assert await asked(again, "GET", "{prorl}:kept") == b"1"
    second.send_signal(signal.SIGTERM)
    for client in (redis, again):
        await client.aclose()
    assert await first.wait() == await second.wait() == 0


async def written(settings: RedisSettings, stop: asyncio.Event) -> int:
    """Counts up in Redis, one acknowledged write after the other; how many there were."""
    redis = connect(settings, connections=1)
    count = 0
    while not stop.is_set():
        count += 1
        await asked(redis, "SADD", "{prorl}:kept", str(count))
    await redis.aclose()
    return count


@pytest.mark.parametrize("tls", [True, False] if SOAK else [False])
async def test_it_is_handed_over_without_a_loss(tmp_path: Path, started: Start, tls: bool) -> None:
    """The next job has all data before the first one ends, and no file of the first one is needed."""
    path, data, options = squeue(tmp_path, "COMPLETED"), tmp_path / "shared" / "redis", ["--tls"] if tls else []
    jobs = [await started("1", path, *options)]
    file = tmp_path / "shared" / "rendezvous" / "ingress.json"
    await until(lambda: _is(file.exists), within_s=60)
    stop = asyncio.Event()
    writing = asyncio.create_task(written(RedisSettings(rendezvous=file), stop))
    directories = [RedisData(data, "").current]
    for job in ("2", "3") if SOAK else ("2",):
        before = file.read_text()
        jobs[-1].send_signal(signal.SIGUSR1)  # Slurm's warning comes early: there is no other yet
        jobs.append(await started(job, path, *options))
        assert await jobs[-2].wait() == 0
        assert file.read_text() != before, "the new address was there before the old job ended"
        directories.append(RedisData(data, "").current)
    stop.set()
    count = await writing
    redis = connect(RedisSettings(rendezvous=file), connections=1)
    assert await asked(redis, "SCARD", "{prorl}:kept") == count
    await redis.aclose()
    assert len(set(directories)) == len(jobs)
    await until(lambda: _is(lambda: not (data / "appendonlydir").exists()), within_s=60)
    jobs[-1].send_signal(signal.SIGTERM)
    assert await jobs[-1].wait() == 0
    again = await started("4", path, *options)  # from its files alone
    redis = connect(RedisSettings(rendezvous=file), connections=1)
    assert await asked(redis, "SCARD", "{prorl}:kept") == count
    await redis.aclose()
    assert [place.name for place in data.glob("copy-*")] == [directories[-1].name]
    again.send_signal(signal.SIGTERM)
    assert await again.wait() == 0


async def test_a_job_that_is_killed_hands_nothing_over_and_its_data_are_loaded(tmp_path: Path, started: Start) -> None:
    """A replica may lack what was acknowledged last: the file of the first one has it."""
    path, data = squeue(tmp_path, "COMPLETED"), tmp_path / "shared" / "redis"
    first = await started("1", path)
    file = tmp_path / "shared" / "rendezvous" / "ingress.json"
    await until(lambda: _is(file.exists), within_s=60)
    stop = asyncio.Event()
    writing = asyncio.create_task(written(RedisSettings(rendezvous=file), stop))
    second = await started("2", path)
    await until(lambda: _is((data / "next.json").exists), within_s=60)
    before = file.read_text()
    first.kill()
    await until(lambda: _is(lambda: file.read_text() != before), within_s=60)
    stop.set()
    count = await writing
    redis = connect(RedisSettings(rendezvous=file), connections=1)
    assert await asked(redis, "SCARD", "{prorl}:kept") == count
    await redis.aclose()
    assert RedisData(data, "").current == data
    second.send_signal(signal.SIGTERM)
    assert await second.wait() == 0


@pytest.mark.parametrize(
    ("state", "refuses", "waits"),
    [
        ("RUNNING", False, b"this one starts when that one has ended"),
        ("COMPLETED", False, b""),
        (AWAY, True, b"it is not known whether job 1, which has the data, has ended"),
    ],
)
async def test_a_job_that_slurm_sees_running_keeps_its_data_where_locks_do_not_reach(
    tmp_path: Path, started: Start, state: str, refuses: bool, waits: bytes
) -> None:
    """Two servers on one append-only file would destroy it. Where Slurm does not answer, the job may run."""
    data = tmp_path / "shared" / "redis"
    data.mkdir(parents=True)
    (data / "job").write_text("1")
    second = await started("2", squeue(tmp_path, state, refuses=refuses))
    assert second.stderr is not None
    async with asyncio.timeout(60):
        said = await second.stderr.readline()
    second.send_signal(signal.SIGTERM)
    assert (waits or b"Redis listens") in said
    assert await second.wait() == 0
    assert (data / "job").exists() == bool(waits), "who ends gives the data back"


@pytest.mark.parametrize("guarded", [True, False])
async def test_nobody_has_ended_for_a_slurm_that_does_not_answer(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Neither a Redis nor a supervisor, nor one that stands still. The control takes a refusal for an end."""
    (tmp_path / "job").write_text("1")
    data, locks = RedisData(tmp_path, "2"), [_lock(tmp_path, job) for job in ("1", "2")]
    assert await locks[0].hold() is not None
    fake.answers("squeue", "SUSPENDED\n")
    assert not await data.free()
    fake.answers("squeue", AWAY, 1)
    if not guarded:
        monkeypatch.setattr(commands, "FORGOTTEN", "")
        assert await data.free()
        assert await locks[1].hold() is not None
        return
    with pytest.raises(commands.SlurmRefused, match=rf"If that job has ended, .* remove {tmp_path}/job"):
        await data.free()
    assert await locks[1].hold() is None
    fake.answers("squeue", "slurm_load_jobs error: Invalid job id specified", 1)
    assert await data.free()
    assert await locks[1].hold() is not None


def _lock(tmp_path: Path, job: str) -> WatchLock:
    return WatchLock(tmp_path, tmp_path / "guard", holder=job, job=job, stale_s=60)


async def asked(redis: RedisClient, *command: str) -> Any:
    """The file is there a moment before the port is open."""
    return await patiently(lambda: ask(redis, *command), outage_ms=30_000)


async def _is(seen: Callable[[], bool]) -> bool:
    return seen()
