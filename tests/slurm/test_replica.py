"""A replica in the job that comes next: when it counts, and what is left of one that never did."""

import argparse
import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from prorl_mq.errors import ConfigurationError, ServerUnfit
from prorl_mq.process import redis_server
from prorl_mq.schema import rendezvous
from prorl_mq.store.server import administration
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from slurm import node_state
from slurm.redis_task import ReplicaTask
from slurm.servers import certificates, queue_server
from slurm.servers.queue_server import RedisTask, WarnedStopping
from slurm.servers.redis_data import RedisData
from tests.support.service import until

pytestmark = [pytest.mark.anyio, pytest.mark.process]
Job = Callable[..., RedisTask]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The Redis task of a job of the deployment in this process, which has a node's state of its own."""

    def made(number: str, *options: str, tls: bool = False) -> RedisTask:
        (tmp_path / "shared" / "redis").mkdir(parents=True, exist_ok=True)
        (tmp_path / number).mkdir(mode=0o700)
        monkeypatch.setenv("PRORL_STATE", str(tmp_path / number))
        monkeypatch.setenv("SLURM_JOB_ID", number)
        return RedisTask(argparse.Namespace(shared=tmp_path / "shared", interface="lo", tls=tls, options=[*options]))

    return made


@contextlib.asynccontextmanager
async def serving(task: RedisTask) -> AsyncIterator[Path]:
    """The rendezvous of its server, which has a key."""
    process = await task._start()
    try:
        file = task._rendezvous / "ingress.json"
        await asked(file, "SET", "{prorl}:kept", "1")
        yield file
    finally:
        await asyncio.to_thread(redis_server.stop, process)


async def asked(file: Path, *command: str) -> Any:
    redis = connect(RedisSettings(rendezvous=file), connections=1)
    try:
        return await ask(redis, *command)
    finally:
        await redis.aclose()


async def kept(file: Path) -> Any:
    return await asked(file, "GET", "{prorl}:kept")


async def offered(replica: ReplicaTask, task: RedisTask) -> bool:
    assert await replica.look()
    return task.data.announced() is not None


async def test_a_server_that_refuses_to_follow_leaves_nothing(job: Job) -> None:
    async with serving(job("1")):
        second = job("2", "--rename-command", "REPLICAOF", "NO", "--rename-command", "SLAVEOF", "NEITHER")
        with pytest.raises(ServerUnfit, match=r"refuses to be a replica of redis://.* options"):
            await ReplicaTask.started(second)
        assert not list(second.data.place.glob("copy-*"))


async def test_a_redis_removes_what_one_that_was_killed_has_left_on_its_node(job: Job, tmp_path: Path) -> None:
    """Certificates with their keys. What another one uses stays, and what one may just be making."""
    task = job("1")
    killed, used, new = (task._state.parent / f"redis-{name}" for name in ("7", "8", "9"))
    for place in (killed, used, new):
        place.mkdir()
        (place / "server.pem").touch()
    for place in (killed, used):
        os.utime(place, (1, 1))
    held = node_state.locked(used)
    assert held is not None
    async with serving(task):
        assert sorted(each.name for each in task._state.parent.glob("redis-*")) == ["redis-1", "redis-8", "redis-9"]
    os.close(held)
    os.utime(task._state, (1, 1))
    node_state.tidy(task._state.parent, "redis-*")
    assert task._state.exists(), "its process lives"


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_primary_that_never_was_a_complete_replica_is_not_the_one_that_counts(
    job: Job, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """The control adopts an empty server, and the next one removes the data."""

    async def unheard(*_: object, **__: object) -> None:
        """As if the server had agreed, and had then forgotten it."""

    monkeypatch.setattr(administration, "follow", unheard)
    async with serving(job("1")) as file:
        before = file.read_text()
        replica = await ReplicaTask.started(second := job("2"))
        replica._complete = not guarded
        assert await replica.look() is not guarded
        await replica.aclose()
        assert (file.read_text() == before) == guarded
    second.data.tidy()
    assert (second.data.place / "appendonlydir").exists() == guarded


async def test_where_the_data_are_not_where_they_should_be_no_empty_redis_begins(job: Job) -> None:
    """The control is the same without a loss: it starts, in the directory that counts."""
    task = job("1")
    data, directory = task.data, task.data.fresh()
    data.adopt(directory)
    async with serving(task):
        assert (directory / "appendonlydir").exists()
    file = data.place / "current"
    for names, said in (
        ("copy-9-gone", "names .*/copy-9-gone, which is not there"),
        ("", "is empty"),
        (None, "is missing"),
    ):
        file.unlink() if names is None else file.write_text(names)
        with pytest.raises(ConfigurationError, match=rf"{said}: Redis is not started. There is {directory.name}"):
            await task.run(WarnedStopping())
        assert (directory / "appendonlydir").exists()
        assert not (data.place / "appendonlydir").exists()


@pytest.mark.parametrize("guarded", [True, False])
async def test_an_offer_of_a_job_that_has_died_ends_nothing_before_its_time(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], guarded: bool
) -> None:
    """The first one serves until the end that was asked for, and another that comes meanwhile takes over. The control
    ends, and nobody serves.
    """
    monkeypatch.setattr(queue_server, "STAY_S", 0.0)
    first, stopping = job("1"), WarnedStopping()
    if not guarded:
        monkeypatch.setattr(RedisTask, "_hand_over", _over)
    run = asyncio.create_task(first.run(stopping))
    file = first._rendezvous / "ingress.json"
    await until(lambda: _is(file.exists), within_s=30)
    RedisData(first.data.place, "9").announce(("127.0.0.1", 1), Path("copy-9-gone"))
    stopping.warned.set()
    if not guarded:
        await run
        return
    await until(
        lambda: _is(lambda: "not handed over to job 9, this one serves" in capsys.readouterr().err), within_s=30
    )
    await asked(file, "SET", "{prorl}:kept", "1")
    replica = await ReplicaTask.started(job("2"))
    while not run.done():
        assert await replica.look()
        await asyncio.sleep(0.05)
    assert replica.promoted
    assert await kept(file) == b"1"
    await replica.aclose()


async def _over(_: RedisTask) -> bool:
    return True


async def _is(seen: Callable[[], bool]) -> bool:
    return seen()


async def test_one_that_follows_an_earlier_primary_is_of_no_use(job: Job) -> None:
    """Another job has loaded the data meanwhile."""
    async with serving(first := job("1")):
        replica = await ReplicaTask.started(second := job("2"))
        await until(lambda: offered(replica, second), within_s=30)
        async with second.admin() as admin:
            await ask(admin, "REPLICAOF", "NO", "ONE")
            assert await administration.is_primary(admin)
        place = rendezvous.read(file := first._rendezvous / "admin.json")
        rendezvous.publish(file, rendezvous.Place(url="redis://127.0.0.1:1", secret=place.secret))
        assert not await replica.look()
        await replica.aclose()
    assert second.data.current == second.data.place
    assert not list(second.data.place.glob("copy-*"))


@pytest.mark.parametrize("guarded", [True, False])
async def test_only_the_server_that_serves_makes_an_authority(
    job: Job, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """The control lets the next one make it: clients show certificates that the first does not trust."""
    async with serving(first := job("1", tls=True)) as file:
        monkeypatch.setattr(certificates, "CA_DAYS", 61)  # half of the authority's time is over
        if not guarded:
            certificates.authority(first._certificates)
            certificates.issue(first._certificates, "ingress", file.with_suffix(".pem"))
        replica = await ReplicaTask.started(second := job("2", tls=True))
        if not guarded:
            with pytest.raises((ConnectionError, OSError)):
                await kept(file)
        else:
            await until(lambda: offered(replica, second), within_s=30)
            assert await kept(file) == b"1"
            await first.renewed()
            assert await replica.look(), "it reads the new authority"
            assert await kept(file) == b"1"
            async with first.admin() as primary, second.admin() as admin:
                await administration.hand_over(primary, *second.place, within_ms=5000)
                await until(lambda: administration.is_primary(admin), within_s=30)
            assert await replica.look()
            assert replica.promoted
            assert await kept(file) == b"1", "it trusts what came while it waited"
        await replica.aclose()


@pytest.mark.parametrize("renews", [True, False])
async def test_a_replica_trusts_the_primary_that_shows_a_newer_certificate(
    job: Job, monkeypatch: pytest.MonkeyPatch, renews: bool
) -> None:
    """The primary connects to it for the hand-over. The control keeps what it began with, and lets nobody in."""
    if not renews:
        monkeypatch.setattr(RedisTask, "trusting", _unheard)
    async with serving(first := job("1", tls=True)):
        replica = await ReplicaTask.started(second := job("2", tls=True))
        await until(lambda: offered(replica, second), within_s=30)
        monkeypatch.setattr(certificates, "CA_DAYS", 61)  # half of the authority's time is over
        await first.renewed()
        assert await replica.look()
        async with first.admin() as primary, second.admin() as admin:
            await administration.hand_over(primary, *second.place, within_ms=5000)
            with contextlib.nullcontext() if renews else pytest.raises(TimeoutError):
                await until(lambda: administration.is_primary(admin), within_s=30 if renews else 2)
        await replica.aclose()


async def _unheard(_: RedisTask) -> None:
    """No look at certificates."""


async def test_the_copy_of_a_replica_that_was_not_promoted_goes_with_it(job: Job) -> None:
    """As often as one fails while the first one serves. The one that counts stays."""
    async with serving(job("1")):
        replica = await ReplicaTask.started(second := job("2"))
        await until(lambda: offered(replica, second), within_s=30)
        assert len(list(second.data.place.glob("copy-*"))) == 1
        replica.process.kill()
        await asyncio.to_thread(replica.process.wait)
        assert not await replica.look()
        await replica.aclose()
        assert second.data.announced() is None
        assert not list(second.data.place.glob("copy-*"))
    second.data.adopt(counts := second.data.fresh())
    second.data.discard(counts)
    assert counts.exists()
