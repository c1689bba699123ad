"""The mirror survives its projector, keeps within its window, and can be rebuilt at any moment."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from prorl_mq.dashboard import places
from prorl_mq.dashboard import projector as projector_module
from prorl_mq.dashboard.mirror import TakenOver
from prorl_mq.dashboard.projector import Fallen, Projector
from prorl_mq.dashboard.rq_format import record_id
from prorl_mq.errors import ConfigurationError
from prorl_mq.schema.items import Advance, Held
from prorl_mq.schema.messages import Outcome, Stage
from prorl_mq.store.server.connection import RedisSettings
from tests.dashboard.conftest import Reader, projecting
from tests.dashboard.test_records import shown
from tests.support.queue import Queue

pytestmark = pytest.mark.anyio
WITHIN_S = 60.0
STEPS = 150  # of traffic beside a rebuild: fewer than what a registry keeps
Start = Callable[..., "subprocess.Popen[bytes]"]


class Traffic:
    """Jobs that do whatever a job can do, one step at a time, by a seed."""

    def __init__(self, queue: Queue, seed: int) -> None:
        self._queue = queue
        self._random = random.Random(seed)
        self._groups = 0

    async def step(self) -> None:
        choice = self._random.random()
        if choice < 0.2:
            self._groups += 1
            await self._queue.admitted(f"g{self._groups}", batch=f"b{self._groups}", n=self._random.randint(1, 4))
        else:
            stage = self._random.choice(list(Stage))
            for held in await self._queue.take(stage, count=3):
                await self._go_on(held)
        if choice > 0.9:
            await self._queue.settle()

    async def drain(self) -> None:
        """Until every job has ended and every group is published."""
        while True:
            held = [each for stage in Stage for each in await self._queue.take(stage, count=100)]
            for each in held:
                await self._forward(each)
            if not held:
                break
        await self._queue.settle()

    async def _go_on(self, held: Held) -> None:
        choice = self._random.random()
        if choice < 0.1:
            await self._queue.store.release([held])
        elif choice < 0.2:
            await self._queue.fail(held, delay_ms=1)
            await self._queue.backed_off(held.ref)
            await self._queue.store.promote([(held.ref, self._queue.keys.stage(Stage.INIT))])
        elif choice < 0.25:
            await self._queue.finish(held, Outcome.INFRA_ERROR)
        else:
            await self._forward(held)

    async def _forward(self, held: Held) -> None:
        if held.stage is Stage.EVAL:
            await self._queue.finish(held)
        else:
            await self._queue.store.advance([Advance(held, None, b"")])


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Waits for what another process brings about."""
    async with asyncio.timeout(WITHIN_S):
        while not await true():
            await asyncio.sleep(0.02)


@pytest.fixture
def start(redis_server: RedisSettings) -> Iterator[Start]:
    """Starts projectors as processes."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*options: str) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "prorl_mq.dashboard", "project", "--redis", redis_server.url]
        started.append(subprocess.Popen([*argv, "--namespace", redis_server.namespace, *options]))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


async def at_the_end(queue: Queue, reader: Reader) -> bool:
    """Whether the mirror shows the last event."""
    rows = await queue.command("XREVRANGE", queue.keys.events, "+", "-", "COUNT", 1)
    return bool(reader.redis.hget("rq:projector", "cursor") == rows[0][0])


@pytest.mark.timeout(300)
async def test_killed_at_any_moment_it_shows_the_same_in_the_end(
    queue: Queue, reader: Reader, start: Start, mirrored: RedisSettings
) -> None:
    """Neither a batch that was cut off nor one that is written twice leaves a trace."""
    chance, traffic = random.Random(5), Traffic(queue, seed=5)
    for _ in range(4):
        process = start()
        seen = reader.redis.hget("rq:projector", "cursor")

        async def moved(seen: bytes | None = seen) -> bool:
            await traffic.step()
            return bool(reader.redis.hget("rq:projector", "cursor") != seen)

        await until(moved)
        for _ in range(chance.randrange(40)):
            await traffic.step()
        process.kill()
        process.wait()
    for _ in range(50):
        await traffic.step()
    await traffic.drain()
    process = start()
    await until(lambda: at_the_end(queue, reader))
    process.kill()
    process.wait()
    followed = reader.everything()
    async with projecting(queue, mirrored) as projector:
        await projector.rebuild()
    assert len([key for key in followed if key.startswith("rq:job:")]) > 100
    rebuilt = reader.everything()
    different = [key for key in followed | rebuilt if followed.get(key) != rebuilt.get(key)]
    assert not different, [(key, followed.get(key), rebuilt.get(key)) for key in different[:3]]


async def test_sigterm_ends_it_with_code_0(queue: Queue, reader: Reader, start: Start) -> None:
    await queue.admitted()
    process = start()
    await until(lambda: at_the_end(queue, reader))
    process.terminate()
    assert await asyncio.to_thread(process.wait, WITHIN_S) == 0


async def test_jobs_that_live_are_taken_up_where_they_were_left(
    queue: Queue, reader: Reader, mirrored: RedisSettings
) -> None:
    """A new process knows of jobs that it has seen no event of."""
    refs = await queue.admitted(n=3)
    [first, second] = await queue.take(Stage.INIT, count=2)
    async with projecting(queue, mirrored) as earlier:
        await shown(earlier)
    await queue.store.advance([Advance(first, None, b"")])
    async with projecting(queue, mirrored) as later:
        cursor = await shown(later)
        await queue.store.advance([Advance(second, None, b"")])
        await shown(later, cursor)
    assert [reader.places(ref, Stage.INIT) for ref in refs] == [["finished"], ["finished"], ["queued"]]
    assert [reader.places(ref, Stage.RUN) for ref in refs] == [["queued"], ["queued"], []]


async def test_a_rebuild_takes_away_what_the_queue_knows_no_more(
    queue: Queue, projector: Projector, reader: Reader
) -> None:
    """Acknowledged results are the trainer's."""
    held = await queue.hold(Stage.EVAL)
    await queue.finish(held)
    await queue.settle()
    await shown(projector)
    assert reader.places(held.ref, Stage.EVAL) == ["finished"]
    await queue.ack_all()
    await queue.command("UNLINK", queue.keys.job(held.ref))
    await projector.rebuild()
    assert set(reader.everything()) == {"rq:queues"}


async def test_a_job_that_vanished_while_nobody_looked_is_taken_out(
    queue: Queue, reader: Reader, mirrored: RedisSettings
) -> None:
    """Its events are trimmed, its result acknowledged: it must not stay in a list."""
    held = await queue.hold(Stage.EVAL)
    async with projecting(queue, mirrored) as earlier:
        await shown(earlier)
    await queue.finish(held)
    await queue.settle()
    await queue.ack_all()
    await queue.command("UNLINK", queue.keys.job(held.ref))
    async with projecting(queue, mirrored) as later:
        await later.resume()
    assert reader.places(held.ref, Stage.EVAL) == []


async def test_a_cursor_that_the_stream_has_gone_past_is_noticed(queue: Queue, projector: Projector) -> None:
    """Then only a rebuild shows what was missed."""
    await queue.admitted("a", batch="a")
    cursor = await shown(projector)
    await queue.admitted("b", batch="b")
    await queue.admitted("c", batch="c")
    await queue.command("XTRIM", queue.keys.events, "MAXLEN", 1)
    with pytest.raises(Fallen):
        await projector.step(cursor)


async def test_a_stream_that_has_lost_its_end_is_noticed(queue: Queue, projector: Projector) -> None:
    """Redis came back without its last second: the cursor is ahead of all that will come."""
    await queue.admitted("a", batch="a")
    cursor = await shown(projector)
    with pytest.raises(Fallen):
        await projector.step(f"{int(cursor.partition('-')[0]) + 60_000}-0")


async def test_a_process_builds_anew_by_itself(queue: Queue, reader: Reader, start: Start) -> None:
    """The stream went past the cursor while nobody followed it."""
    await queue.admitted("a", batch="a")
    process = start()
    await until(lambda: at_the_end(queue, reader))
    process.kill()
    process.wait()
    [ref] = await queue.admitted("b", batch="b")
    await queue.admitted("c", batch="c")
    await queue.command("XTRIM", queue.keys.events, "MAXLEN", 1)
    start()
    await until(lambda: at_the_end(queue, reader))
    assert reader.places(ref, Stage.INIT) == ["queued"]


async def test_whoever_was_taken_over_from_writes_nothing_any_more(
    queue: Queue, reader: Reader, mirrored: RedisSettings
) -> None:
    """It would put back what the other has written since."""
    await queue.admitted("a", batch="a")
    async with projecting(queue, mirrored) as earlier, projecting(queue, mirrored) as later:
        cursor = await shown(earlier)
        await shown(later)
        await queue.admitted("b", batch="b")
        before = reader.everything()
        with pytest.raises(TakenOver):
            await earlier.step(cursor)
        assert reader.everything() == before
        await shown(later)
        assert reader.everything() != before


@pytest.mark.parametrize("ending", ["it ends", "it is killed"])
async def test_one_that_stands_by_goes_on_when_the_other_has_gone(
    queue: Queue, reader: Reader, mirrored: RedisSettings, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Whoever was started last writes; who waits is woken by its good-bye, or by its silence."""
    monkeypatch.setattr(projector_module, "LOOK_S", 0.05)
    monkeypatch.setattr(projector_module, "PATIENCE_S", 0.5 if ending == "it is killed" else 3600)
    [first] = await queue.admitted("a", batch="a")
    async with projecting(queue, mirrored) as earlier, projecting(queue, mirrored) as later:
        waiting = asyncio.create_task(earlier.run(), name="earlier")
        await until(lambda: at_the_end(queue, reader))
        await shown(later)
        [second] = await queue.admitted("b", batch="b")
        if ending == "it ends":
            await later.let_go()
        await until(lambda: at_the_end(queue, reader))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert [reader.places(ref, Stage.INIT) for ref in (first, second)] == [["queued"]] * 2


async def test_one_that_stands_by_takes_nothing_from_another_that_was_quicker(
    queue: Queue, reader: Reader, mirrored: RedisSettings
) -> None:
    """It has seen that nobody writes, and by then another has begun, such as `--rebuild`."""
    await queue.admitted("a", batch="a")
    async with projecting(queue, mirrored) as late, projecting(queue, mirrored) as quick:
        cursor = await quick.resume()
        with pytest.raises(TakenOver):
            await late.resume(force=False)
        await queue.admitted("b", batch="b")
        await shown(quick, cursor)
        await quick.let_go()
        await late.resume(force=False)
        assert await at_the_end(queue, reader)


@pytest.mark.timeout(300)
async def test_made_anew_beside_a_projector_it_misses_nothing(
    queue: Queue, reader: Reader, start: Start, mirrored: RedisSettings
) -> None:
    """What happens meanwhile is written by nobody else, and followed afterwards."""
    traffic = Traffic(queue, seed=7)
    start()
    await queue.admitted()
    await until(lambda: at_the_end(queue, reader))
    for _ in range(2):
        making = start("--rebuild")
        for _ in range(STEPS):
            await traffic.step()
        assert await asyncio.to_thread(making.wait, WITHIN_S) == 0
    await traffic.drain()
    await until(lambda: at_the_end(queue, reader))
    followed = reader.everything()
    async with projecting(queue, mirrored) as projector:
        await projector.rebuild()
    assert any(key.startswith("rq:job:") for key in followed)
    assert reader.everything() == followed


async def test_registries_keep_the_newest(
    queue: Queue, projector: Projector, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one batch and over several; what leaves takes its hash with it."""
    monkeypatch.setattr(places, "KEPT", 3)
    cursor, refs = await projector.resume(), []
    for group in range(4):
        refs += await queue.admitted(f"g{group}", batch=f"b{group}", n=2)
        for held in await queue.take(Stage.INIT):
            await queue.store.advance([Advance(held, None, b"")])
        cursor = await shown(projector, cursor) if group else cursor
    shown_now = [reader.places(ref, Stage.INIT) for ref in refs]
    assert shown_now == [[]] * 5 + [["finished"]] * 3
    hashes = [key for key in reader.everything() if key.startswith("rq:job:") and key.endswith("-init")]
    assert sorted(hashes) == [f"rq:job:{record_id(ref, Stage.INIT)}" for ref in sorted(refs[5:])]


async def test_a_list_shows_those_that_came_first(
    queue: Queue, projector: Projector, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next ones move up as these leave."""
    monkeypatch.setattr(places, "SHOWN", 3)
    refs = await queue.admitted(n=5)
    cursor = await shown(projector)
    assert [bool(reader.places(ref, Stage.INIT)) for ref in refs] == [True] * 3 + [False] * 2
    await queue.take(Stage.INIT, count=2)
    await shown(projector, cursor)
    assert [reader.places(ref, Stage.INIT) for ref in refs] == [["started"]] * 2 + [["queued"]] * 3


async def test_those_that_are_started_move_up_too(
    queue: Queue, projector: Projector, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a process that takes the mirror up."""
    monkeypatch.setattr(places, "SHOWN", 2)
    refs = await queue.admitted(n=5)
    cursor = await shown(projector)
    held = [*await queue.take(Stage.INIT, count=3), *await queue.take(Stage.INIT, count=2)]
    cursor = await shown(projector, cursor)
    assert sum(bool(reader.places(ref, Stage.INIT)) for ref in refs) == 2
    await queue.store.advance([Advance(each, None, b"") for each in held[:2]])
    await shown(projector)
    found = [reader.places(each.ref, Stage.INIT) for each in held]
    assert found[:2] == [["finished"]] * 2
    assert sorted(found[2:]) == [[], ["started"], ["started"]]
    await queue.store.advance([Advance(each, None, b"") for each in held[2:4]])
    await shown(projector)
    assert reader.places(held[4].ref, Stage.INIT) == ["started"]


async def test_records_leave_when_their_time_is_over(
    queue: Queue, projector: Projector, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "WINDOW_S", -1)
    held = await queue.hold(Stage.RUN)
    await shown(projector)
    assert (reader.places(held.ref, Stage.INIT), reader.places(held.ref, Stage.RUN)) == ([], ["started"])
    assert [key for key in reader.everything() if key.startswith("rq:job:")] == [
        f"rq:job:{record_id(held.ref, Stage.RUN)}"
    ]


async def test_a_database_shows_one_namespace(queue: Queue, projector: Projector, reader: Reader) -> None:
    """Two projectors with different truths would undo each other's records."""
    await shown(projector)
    reader.redis.hset("rq:projector", "namespace", "another")
    for action in (projector.resume, projector.rebuild):
        with pytest.raises(ConfigurationError, match="give --database another number"):
            await action()


async def test_what_is_in_the_payload_stays_out(queue: Queue, projector: Projector, reader: Reader) -> None:
    """Neither the open part nor the sealed one."""
    held = await queue.hold(Stage.EVAL, payload={"question": "CANARY"}, sealed={"answer": "CANARY"})
    await queue.finish(held)
    await shown(projector)
    assert "CANARY" not in repr(reader.everything())


def test_niceness_is_above_the_workers(start: Start) -> None:
    """It must not take their cores; the mirror may lag."""
    process = start()
    deadline = time.monotonic() + WITHIN_S
    while (nice := os.getpriority(os.PRIO_PROCESS, process.pid)) < os.getpriority(os.PRIO_PROCESS, 0) + 1:
        assert time.monotonic() < deadline, nice
        if nice == 19:  # we are at the end ourselves
            return
        time.sleep(0.01)
