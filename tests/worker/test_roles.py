"""A server that changes its role, drops its clients or is full at the start ends no worker and no duty."""

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from prorl_mq.duties.running import running
from prorl_mq.process import redis_server
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, ask, connect, passing
from tests.conftest import binaries
from tests.support.queue import Queue
from tests.verbs.test_memory_limit import LIMIT, fill
from tests.worker.stage import Acting, finish, options, states, until, working

pytestmark = pytest.mark.anyio

NOBODY = ("127.0.0.1", "1")  # a master that is never reached: the server keeps what it has


async def change_roles(queue: Queue) -> None:
    """A demotion ends blocking reads with `-UNBLOCKED`, and refuses writes until it is taken back."""
    await queue.command("REPLICAOF", *NOBODY)
    try:
        await asyncio.sleep(1.5)
    finally:
        await queue.command("REPLICAOF", "NO", "ONE")


async def unblock(queue: Queue) -> None:
    for number in re.findall(rb"^id=(\d+) .*flags=b", await queue.command("CLIENT", "LIST"), re.MULTILINE):
        await queue.command("CLIENT", "UNBLOCK", number, "ERROR")


async def kill(queue: Queue) -> None:
    await queue.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@pytest.mark.parametrize("disturb", [change_roles, unblock, kill], ids=lambda each: each.__name__)
async def test_a_worker_works_on_after(
    queue: Queue, settings: RedisSettings, disturb: Callable[[Queue], Awaitable[None]]
) -> None:
    stage = Acting(finish)
    async with working(options(settings), stage) as worker:
        first = await queue.admitted("g1", batch="b1")
        await until(lambda: stage.begun == first)
        for _ in range(3):
            await disturb(queue)
        second = await queue.admitted("g2", batch="b2")

        async def done() -> bool:
            return await states(queue, second) == {State.DONE}

        await until(done)
        await until(lambda: worker.slots.free == 4)


@pytest.mark.parametrize("disturb", [change_roles, unblock, kill], ids=lambda each: each.__name__)
async def test_duties_work_on_after(
    queue: Queue,
    settings: RedisSettings,
    disturb: Callable[[Queue], Awaitable[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    about = {"stage": "init", "node": "n1", "slots": 64, "busy": 0, "pid": 1, "started_ms": 1}
    await queue.command("HSET", queue.keys.worker("w"), *(part for pair in about.items() for part in pair))
    await queue.command("ZADD", queue.keys.workers, 1 << 50, "w")
    async with running(settings, name="api", lease_ms=60_000):
        await disturb(queue)
        await queue.submit("g", batch="b")

        async def admitted() -> bool:
            return int(await queue.command("XLEN", queue.keys.stage(Stage.INIT))) == 1

        await until(admitted)
    assert "Traceback" not in caplog.text


async def test_a_worker_starts_and_works_while_memory_is_full() -> None:
    """It would else wait for what frees memory: the end of jobs that only a worker ends."""
    [binary] = binaries().values()
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        memory = ["--maxmemory", str(LIMIT)]
        async with redis_server.running(Path(name), binary=binary, options=memory) as settings:
            client = connect(settings)
            queue = Queue(client, Keys(settings.namespace))
            await queue.prepare()
            refs = await queue.admitted()
            await fill(queue)
            async with working(options(settings), Acting(finish)):

                async def done() -> bool:
                    return await states(queue, refs) == {State.DONE}

                await until(done)
            await client.aclose()


@pytest.mark.parametrize("word", ["READONLY", "UNBLOCKED", "MASTERDOWN", "NOREPLICAS", "LOADING", "MISCONF", "OOM"])
async def test_errors_that_pass_are_known_by_their_first_word(settings: RedisSettings, word: str) -> None:
    """As redis-py raises them: for some of these it takes the word away and has a class, for some it has not."""
    client = connect(settings)
    try:
        with pytest.raises(RedisError, match="of this moment") as raised:
            await ask(client, "EVAL", "return redis.error_reply(ARGV[1] .. ' of this moment')", 0, word)
        assert passing(raised.value) is (word != "OOM")
    finally:
        await client.aclose()
