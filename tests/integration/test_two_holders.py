"""A restart from a file that lacks a read gives one entry to two workers: one gets the lease, and one commit counts."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from prorl_mq.process import redis_server
from prorl_mq.schema.items import Advance, Entry, Held, Lane
from prorl_mq.schema.messages import Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import renewal
from tests.support.queue import Queue, lease_of
from tests.verbs.places import JOB

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def restarted(tmp_path: Path) -> AsyncIterator[tuple[Queue, Held, Queue]]:
    """Two workers after the restart, the first with what it had read before."""
    binary, directory, kept = redis_server.find_binary(), tmp_path / "r", tmp_path / "kept"
    settings = RedisSettings(url=f"unix://{directory}/redis.sock")
    server = redis_server.start(binary, directory, ["--appendfsync", "always"])
    clients = [connect(settings) for _ in range(2)]
    first, second = (Queue(client, Keys("t"), name) for client, name in zip(clients, ("w1", "w2"), strict=True))
    try:
        await redis_server.answering(settings, server, directory)
        await first.prepare()
        await first.admitted()
        shutil.copytree(directory / "appendonlydir", kept)
        [held] = await first.begin(Stage.INIT)
        server.kill()
        server.wait()
        shutil.rmtree(directory / "appendonlydir")
        shutil.copytree(kept, directory / "appendonlydir")
        server = redis_server.start(binary, directory, ["--appendfsync", "always"])
        await redis_server.answering(settings, server, directory)
        yield first, held, second
    finally:
        for client in clients:
            await client.aclose()
        server.kill()
        server.wait()


async def advance(queue: Queue, held: Held) -> str:
    [answer] = await queue.store.advance([Advance(held, None, b"by " + queue.store.name.encode())])
    return answer


async def claim(queue: Queue, held: Held) -> str:
    [answer] = await queue.claim(Stage.INIT, [Entry(held.ref, held.entry)])
    return answer.status


async def beat(queue: Queue, held: Held) -> str:
    made = renewal(queue.keys, queue.store.name, {"stage": "init"}, [lease_of(held)], lease_ms=60_000)
    [answer] = await queue.store.call("renew", made.keys, made.arguments)
    return str(answer.decode())


async def carried(queue: Queue) -> bytes | None:
    data: bytes | None = await queue.command("HGET", queue.keys.job(JOB), "carry")
    return data


async def test_of_two_that_need_no_lease_the_first_commit_counts(tmp_path: Path) -> None:
    async with restarted(tmp_path) as (first, held, second):
        [other] = await second.begin(Stage.INIT)
        assert (other.ref, other.token, other.entry) == (held.ref, held.token, held.entry)
        assert await advance(first, held) == "advanced"
        assert await advance(second, other) == "stale"
        assert await advance(first, held) == "already"
        assert await carried(first) == b"by w1"
        assert await first.command("XLEN", first.keys.stage(Stage.RUN)) == 1


async def test_the_one_that_the_pending_list_names_gets_the_lease_and_shuts_the_other_out(tmp_path: Path) -> None:
    async with restarted(tmp_path) as (first, held, second):
        [other] = await second.begin(Stage.INIT)
        assert (await claim(first, held), await beat(first, held)) == ("stale", "lost")
        assert await beat(second, other) == "held"
        assert (await claim(first, held), await beat(first, held)) == ("stale", "lost")
        assert (await first.store.assign(held))[0] == b"stale"
        assert await first.store.divert(Lane(Stage.INIT), [Entry(held.ref, held.entry)], ["sums"]) == ["stale"]
        assert await advance(first, held) == "stale"
        assert await advance(second, other) == "advanced"
        assert await carried(first) == b"by w2"


async def test_what_nobody_has_read_since_is_neither_leased_nor_committed(tmp_path: Path) -> None:
    async with restarted(tmp_path) as (first, held, second):
        assert (await claim(first, held), await beat(first, held)) == ("stale", "lost")
        assert await advance(first, held) == "stale"
        [other] = await second.begin(Stage.INIT)
        assert await advance(second, other) == "advanced"
