"""Submissions that are accepted when they are on Redis's disk: a crash of the host takes none of them."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bench.chaos.disturb import Disturbance
from prorl_mq.errors import RedisUnavailable, ServerUnfit
from prorl_mq.process import redis_server
from prorl_mq.schema.ids import batch_ref, run_ref
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Task
from prorl_mq.schema.task_schema import Schema
from prorl_mq.service import submit
from prorl_mq.store import batches, work
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import RedisSettings, connect, patiently
from prorl_mq.store.store import Store

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(90)]

SLOW_S = 0.5


class Server:
    """A server on a disk that can be slow, and that loses what it had not synced when its host dies."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disk = Disturbance(directory / "disk")
        self.settings = RedisSettings(url=f"unix://{directory}/redis.sock")

    def start(self, *options: str) -> None:
        preload = [f"{name}={value}" for name, value in self.disk.environment.items()]
        script = self.directory / "server"
        script.write_text(f'#!/bin/sh\nexec env {" ".join(preload)} {redis_server.find_binary()} "$@"\n')
        script.chmod(0o700)
        self.process = redis_server.start(str(script), self.directory, options)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_host(self) -> None:
        self.kill()
        self.disk.lose_what_was_not_synced(self.directory)


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        made = Server(Path(name))
        made.start("--appendfsync", "everysec")
        try:
            yield made
        finally:
            redis_server.stop(made.process)


@contextlib.asynccontextmanager
async def ready(server: Server, *, synced: bool) -> AsyncIterator[Store]:
    redis, waiting = connect(server.settings), connect(server.settings)
    store = Store(redis, Keys(), name="test", outage_ms=20_000, waiting=waiting, synced=synced)
    try:
        await patiently(lambda: fitness.start_up(redis), outage_ms=20_000)
        await work.enroll(store, {"sums": Schema(open_ended=True)}, None)
        yield store
    finally:
        await redis.aclose()
        await waiting.aclose()


def batch(name: str) -> BatchRequest:
    task = Task(task_id="t", data_source="sums", payload={"q": 1})
    return BatchRequest(run_id="r", batch_id=name, groups=[GroupRequest(task=task)])


async def stored(store: Store) -> set[str]:
    return {key.decode().rpartition(":")[2] for key in await store.read("KEYS", "*group:*")}


async def test_what_was_accepted_when_synced_outlives_the_host_or_the_server_is_refused(server: Server) -> None:
    """Valkey 9.1 is refused, since its WAITAOF does not wait; Redis 8 passes."""
    async with ready(server, synced=True) as store:
        server.disk.set_fsync(SLOW_S)
        with contextlib.suppress(ServerUnfit):
            await fitness.syncs(store.redis, store.keys)
            for name in ("a", "b", "c"):
                await submit.accept(store, "default", batch(name))
            await crash(server)
            assert await stored(store) == {"a-0", "b-0", "c-0"}


async def test_what_was_only_stored_under_everysec_is_lost_with_the_host(server: Server) -> None:
    """The control of the one above, and of the sentence in the README."""
    async with ready(server, synced=False) as store:
        server.disk.set_fsync(3600)
        await submit.accept(store, "default", batch("a"))
        assert await stored(store) == {"a-0"}
        await crash(server)
        assert await stored(store) == set()


async def test_under_always_nothing_that_was_accepted_is_lost_with_the_host(server: Server) -> None:
    async with ready(server, synced=False) as store:
        await store.redis.execute_command("CONFIG", "SET", "appendfsync", "always")
        for name in ("a", "b", "c"):
            await submit.accept(store, "default", batch(name))
        await crash(server)
        assert await stored(store) == {"a-0", "b-0", "c-0"}


async def crash(server: Server) -> None:
    server.kill_host()
    server.disk.set_fsync(0)
    server.start("--appendfsync", "everysec")


async def test_a_restart_between_the_submission_and_the_wait_is_noticed(server: Server) -> None:
    """The new process has nothing to wait for, and may have lost the batch."""
    async with ready(server, synced=True) as store:
        accepted = batch_ref(run_ref("default", "r"), "a")
        before = await batches.server(store)
        await submit.accept(store, "default", batch("a"))
        await batches.sync(store, accepted, stored_by=before)
        server.kill()
        server.start("--appendfsync", "everysec")
        with pytest.raises(RedisUnavailable, match=r"started again.*submit it again"):
            await batches.sync(store, accepted, stored_by=before)
