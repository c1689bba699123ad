"""Behind a proxy that acknowledges TCP for a dead peer no read waits without limit, and nothing read is left lying."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from prorl_mq.duties.running import running
from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.store import streams
from prorl_mq.store.server import connection
from prorl_mq.store.server.beat import Beat
from prorl_mq.store.server.connection import MARGIN_S, OUTAGES, RedisSettings, ask, connect, deadline
from tests.support.queue import Queue
from tests.worker.silence import silent
from tests.worker.stage import Acting, finish, options, states, until, working
from workers.process.heartbeat import Heartbeat

pytestmark = pytest.mark.anyio

SOON_S = 15.0  # for a busy machine; the longest deadline is that of an ordinary answer, 10 s


async def test_a_blocking_read_ends_though_nothing_answers(settings: RedisSettings) -> None:
    async with silent(settings) as (proxy, through):
        client = connect(through, connections=1)
        try:
            await ask(client, "PING")
            proxy.fall_silent()
            began = time.monotonic()
            with pytest.raises(OUTAGES):
                await ask(client, "BZMPOP", 0.2, 1, "bell", "MIN")
            assert time.monotonic() - began < 0.2 + MARGIN_S + 2
            proxy.heal()
            assert await ask(client, "PING") == b"PONG"
        finally:
            await client.aclose()


@pytest.mark.parametrize("command", [("BZMPOP", 0, 1, "bell", "MIN"), ("XREAD", "BLOCK", 0, "STREAMS", "s", "$")])
async def test_a_read_that_would_block_without_limit_is_refused(
    settings: RedisSettings, command: tuple[str | int, ...]
) -> None:
    with pytest.raises(ValueError, match="would block without limit"):
        deadline(*command)
    client = connect(settings)
    try:
        with pytest.raises(ValueError, match="would block without limit"):
            await ask(client, *command)
    finally:
        await client.aclose()


async def test_a_worker_works_again_soon_after_its_connections_have_healed(
    queue: Queue, settings: RedisSettings
) -> None:
    stage = Acting(finish)
    async with silent(settings) as (proxy, through), working(options(through), stage) as worker:
        first = await queue.admitted("g1", batch="b1")
        await until(lambda: stage.begun == first)
        proxy.fall_silent()
        second = await queue.admitted("g2", batch="b2")
        await asyncio.sleep(MARGIN_S + 2)
        assert stage.begun == first
        proxy.heal()

        async def done() -> bool:
            return await states(queue, second) == {State.DONE}

        await until(done, within_s=SOON_S)
        assert stage.begun == first + second
        await until(lambda: worker.slots.free == 4)


async def test_entries_whose_delivery_was_lost_are_claimed_at_once_and_once(
    queue: Queue, settings: RedisSettings
) -> None:
    """Redis has handed them to this worker: nobody else reads them, and the lease of a minute would pass first."""
    stage = Acting(finish)
    async with silent(settings) as (proxy, through), working(options(through), stage):
        await until(lambda: queue.command("ZCARD", queue.keys.workers))
        proxy.swallow(b"acme:r:g1:")
        refs = await queue.admitted("g1", batch="b1", n=3)

        async def done() -> bool:
            return await states(queue, refs) == {State.DONE}

        await until(done, within_s=SOON_S)
        assert proxy.swallowed
        assert sorted(stage.begun) == sorted(refs)


async def test_duties_work_again_soon_after_their_connections_have_healed(
    queue: Queue, settings: RedisSettings
) -> None:
    about = {"stage": "init", "node": "n1", "slots": 64, "busy": 0, "pid": 1, "started_ms": 1}
    await queue.command("HSET", queue.keys.worker("w"), *(part for pair in about.items() for part in pair))
    await queue.command("ZADD", queue.keys.workers, 1 << 50, "w")
    async with silent(settings) as (proxy, through), running(through, name="api", lease_ms=60_000):

        async def admitted() -> bool:
            return int(await queue.command("XLEN", queue.keys.stage(Stage.INIT))) == 1

        await queue.submit("g1", batch="b1")
        await until(admitted)
        proxy.fall_silent()
        await asyncio.sleep(MARGIN_S + 2)
        await queue.command("DEL", queue.keys.stage(Stage.INIT))
        await streams.ensure(queue.redis, streams.shared(queue.keys))
        await queue.submit("g2", batch="b2")
        proxy.heal()
        await until(admitted, within_s=SOON_S)


@pytest.fixture
def accepting() -> Iterator[RedisSettings]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        yield RedisSettings(url=f"redis://127.0.0.1:{port}/0", password="secret", outage_ms=0, answer_s=3600)


@pytest.mark.parametrize("bounded", [True, False])
async def test_a_greeting_that_nothing_answers_ends(
    accepting: RedisSettings, monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """Its deadline is not that of an ordinary answer: a process that starts need not wait so long to try again. The
    control: that of an ordinary answer.
    """
    monkeypatch.setattr(connection, "MARGIN_S", 0.2)
    if not bounded:
        monkeypatch.setattr(connection, "GREETINGS", frozenset())
    client = connect(accepting, connections=1)
    try:
        with pytest.raises(OUTAGES):
            async with asyncio.timeout(20 if bounded else 0.5) as limit:
                await ask(client, "PING")
        assert limit.expired() is not bounded
    finally:
        await client.aclose()


async def test_a_heartbeat_that_nothing_answers_ends(accepting: RedisSettings) -> None:
    """It runs in a thread, which nobody can end from outside: so it is one that the test need not wait for."""
    beat = Beat(accepting, "w", lease_ms=1_500)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def send() -> None:
        try:
            beat.send({}, [])
        except RedisUnavailable as error:
            loop.call_soon_threadsafe(ended.set_result, str(error))

    threading.Thread(target=send, daemon=True).start()
    async with asyncio.timeout(20):
        assert "was not answered" in await ended
    beat.close()


async def test_a_worker_tells_of_an_outage_once(
    settings: RedisSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The logs of all workers of a cluster lie on one file system, and each beats four times a second meanwhile."""
    heartbeat = Heartbeat(settings, "w", lease_ms=1_500, about=dict, leases=list, answered=lambda _: None)
    said = ["refused", "refused", "refused", "no route", "no route"]

    def send(*_: object) -> list[str]:
        if said:
            raise RedisUnavailable(said.pop(0))
        return []

    monkeypatch.setattr(heartbeat._beat, "send", send)
    answers = [heartbeat._try_beat() for _ in range(7)]
    assert answers == [False] * 5 + [True] * 2
    assert caplog.messages == ["refused", "no route", "the heartbeat is answered again, after 5 that were not"]
    heartbeat.stop()
