"""A rollout that is paused, or whose worker leaves: it ends in front of a turn, and continues there elsewhere."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from prorl_mq.duties.expire import PauseEnds
from prorl_mq.duties.service_clock import ServiceClock
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import EntryId, JobRef, Token
from prorl_mq.schema.items import Claim, Held, Lane, Logged
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage, events
from prorl_mq.schema.status import PauseEnd, PauseOrder
from prorl_mq.schema.turns import CHECKPOINT, Checkpoint
from prorl_mq.service import pause
from prorl_mq.service.cancel import cancel
from prorl_mq.store import jobs
from prorl_mq.store.payloads.checkpoints import CheckpointArchives, KeptCheckpoint
from prorl_mq.store.payloads.limits import SMALL_BYTES
from prorl_mq.store.server.connection import RedisSettings
from sandbox.fake import FakeProvider
from sandbox.protocol import SandboxSpec
from tests.support.queue import POOL, RUN, Queue, spec
from tests.worker.stage import until
from tests.worker.test_turn_logs import NODE, Place, Turns
from workers.handler import Ran, Run, TurnLog
from workers.process.worker import Worker
from workers.stages.job_log import JobLog
from workers.stages.work import Work

pytestmark = pytest.mark.anyio
LEASE_MS = 900  # so that a heartbeat tells of a pause within 0.3 s
TURNS = 4


class Walk(Turns):
    """Four turns, each of a completion, a call that writes a file, and its result. One waits in its call."""

    def __init__(self) -> None:
        super().__init__()
        self.sampled: list[int] = []
        self.called: list[int] = []
        self.stands_at = 1  # the turn whose call waits
        self.borders: Callable[[TurnLog], object] = lambda log: log.border()

    async def run(self, context: Run) -> Ran:
        log, box = context.log, context.sandbox
        assert log is not None
        assert box is not None
        self.found.append(list(log.before))
        self.restored.append(log.restored)
        for turn in range(TURNS):
            past = len(log.before) - 2 * turn
            if past <= 0:
                await self._border(log)
                self.sampled.append(turn)
                await log.append(b"sampled %d" % turn, wait=True)
            await log.acts()
            if log.rebuilds and past < 2:
                await log.rebuilt()
            if past < 2 or (log.rebuilds and turn > log.restored):
                await self._call(context, turn)
            if past < 2:
                await log.append(b"answered %d" % turn, wait=False)
        return Ran(trajectory=None, export="done")

    async def _border(self, log: TurnLog) -> None:
        made = self.borders(log)
        if asyncio.iscoroutine(made):
            await made

    async def _call(self, context: Run, turn: int) -> None:
        assert context.sandbox is not None
        self.called.append(turn)
        if turn == self.stands_at:
            self.waits.append(turn)
            await self.go.wait()
        await context.sandbox.named(f"{turn}.0").bash("true")
        await context.sandbox.write_file("/steps", b"%d" % turn)


class Paused(Place):
    """A job in RUN that its worker has under way, and what is asked of it."""

    def __init__(self, queue: Queue, settings: RedisSettings) -> None:
        super().__init__(queue, settings)
        self.walk = self.family = Walk()

    @asynccontextmanager
    async def worker(self, name: str, *, lease_ms: int = 60_000) -> AsyncIterator[tuple[Worker, "asyncio.Task[None]"]]:
        """One that has time to wait for a turn."""
        async with super().worker(name, lease_ms=lease_ms) as made:
            made[0].jobs._grace_s = 20.0
            yield made

    async def pause(self, *, for_ms: int = 3_600_000, then: PauseEnd = PauseEnd.RESUME) -> str:
        order = PauseOrder(for_ms=for_ms, then=then)
        return (await pause.pause(self.queue.store, "job", self.ref, order)).state

    async def resume(self) -> int:
        return (await pause.resume(self.queue.store, "job", self.ref)).jobs

    async def state(self) -> str:
        return (await self.queue.snapshot(self.ref)).state

    async def becomes(self, state: State) -> None:
        async def there() -> bool:
            return await self.state() == state

        await until(there)

    async def told(self) -> list[str]:
        return [each.event for each in events(self.ref, await jobs.timeline(self.queue.store, self.ref))]

    async def checkpoints(self) -> list[int]:
        return [decode(each[1:], Checkpoint).turn for each in await self.log() if each[:1] == CHECKPOINT]

    async def end(self, name: str) -> None:
        """INIT makes another sandbox if it must, and a worker of that name walks to the end."""
        if (await self.queue.snapshot(self.ref)).stage is Stage.INIT:
            await self.init()
        async with self.worker(name, lease_ms=LEASE_MS):
            await self.at(Stage.EVAL)


def _empty(worker: Worker) -> bool:
    return not worker.slots.held


@pytest.fixture
async def place(queue: Queue, settings: RedisSettings) -> Paused:
    found = Paused(queue, settings)
    await found.prepare()
    return found


async def test_a_paused_rollout_gives_everything_back_and_continues_in_another_sandbox(place: Paused) -> None:
    """The call under way ends and is logged; the sandbox is saved and destroyed; no turn is sampled and no call is made
    a second time.
    """
    async with place.worker("w1", lease_ms=LEASE_MS) as (worker, _):
        await place.waiting(1)
        assert await place.pause() == "pausing"
        await until(lambda: any(slot.work.left.asked for slot in worker.slots.held.values()))
        place.walk.go.set()
        await place.becomes(State.PAUSED)
        await until(lambda: not worker.slots.held)
        await until(lambda: not place.provider.alive)
    assert (place.walk.sampled, await place.checkpoints()) == ([0, 1], [1])
    assert await place.queue.command("ZCARD", place.queue.keys.deadlines) == 0
    assert (await place.told())[-3:] == ["pause", "fail", "park"]
    assert await place.resume() == 1
    await place.end("w2")
    assert (place.walk.sampled, place.walk.called) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert place.walk.restored == [-1, 1]


async def test_without_borders_the_same_rollout_runs_on(place: Paused) -> None:
    """The control of the test above: who never asks is not stopped before the grace time is over."""
    place.walk.borders = lambda _: None
    async with place.worker("w1", lease_ms=LEASE_MS) as (worker, _):
        await place.waiting(1)
        await place.pause()
        await until(lambda: any(slot.work.left.asked for slot in worker.slots.held.values()))
        place.walk.go.set()
        await place.becomes(State.PAUSED)
    assert (place.walk.sampled, (await place.queue.snapshot(place.ref)).stage) == ([0, 1, 2, 3], Stage.EVAL)


async def test_a_resumption_before_the_pause_was_obeyed_costs_nothing(place: Paused) -> None:
    async with place.worker("w1", lease_ms=LEASE_MS) as (worker, _):
        await place.waiting(1)
        await place.pause()
        [slot] = worker.slots.held.values()
        await until(lambda: slot.work.left.asked)
        assert await place.resume() == 1
        await until(lambda: not slot.work.left.asked)
        place.walk.go.set()
        await place.at(Stage.EVAL)
    assert (place.walk.found, place.walk.sampled) == ([[]], [0, 1, 2, 3])


async def test_a_resumption_that_its_worker_has_not_heard_of_loses_no_turn(place: Paused) -> None:
    """The worker gives the job back though it was resumed meanwhile: then it waits for nobody."""
    async with place.worker("w1") as (worker, _):  # its next heartbeat comes in 20 s
        await place.waiting(1)
        [slot] = worker.slots.held.values()
        await place.pause()
        worker.jobs.pause(slot)
        await place.resume()
        place.walk.go.set()
        await until(lambda: not worker.slots.held)
    assert await place.state() == State.DELAYED
    await place.end("w2")
    assert place.walk.sampled == [0, 1, 2, 3]


async def test_a_paused_job_can_be_cancelled(place: Paused) -> None:
    async with place.worker("w1", lease_ms=LEASE_MS):
        await place.waiting(1)
        await place.pause()
        place.walk.go.set()
        await place.becomes(State.PAUSED)
    await cancel(place.queue.store, "job", place.ref)
    assert (await place.state(), await place.log()) == (State.DONE, [])


async def test_a_cancel_that_comes_after_the_pause_wins(place: Paused) -> None:
    async with place.worker("w1", lease_ms=LEASE_MS):
        await place.waiting(1)
        await place.pause()
        await cancel(place.queue.store, "job", place.ref)
        await place.becomes(State.DONE)
    assert not place.provider.alive


@pytest.mark.parametrize(("then", "state"), [(PauseEnd.RESUME, State.QUEUED), (PauseEnd.EXPIRE, State.DONE)])
async def test_a_pause_that_is_over_ends_as_it_was_ordered(place: Paused, then: PauseEnd, state: State) -> None:
    store = place.queue.store
    ends = PauseEnds(store, ServiceClock(store, lease_ms=1_000))
    assert await place.pause(then=then) == "paused"
    await ends.turn()
    assert await place.state() == State.PAUSED
    await place.queue.command("HSET", place.queue.keys.job(place.ref), "pause", 1)
    await place.queue.command("ZADD", place.queue.keys.paused, 1, place.ref)
    await ends.turn()
    assert await place.state() == state
    assert await place.queue.command("ZCARD", place.queue.keys.paused) == 0


@pytest.mark.parametrize("put_right", [True, False])
async def test_a_hold_outlives_a_jump_of_the_clock_that_another_duty_has_put_right(
    place: Paused, put_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time was read before, and the look at the clock finds nothing any more. The control: time that has passed."""
    store, keys = place.queue.store, place.queue.keys
    now_ms = await store.now_ms()
    await store.hold_run(RUN, now_ms + 60_000)
    told = [now_ms + 3_600_000] * (2 if put_right else 10)

    async def read() -> int:
        return told.pop() if told else now_ms

    monkeypatch.setattr(store, "now_ms", read)
    await PauseEnds(store, ServiceClock(store, lease_ms=1_000)).turn()
    held = await place.queue.command("ZSCORE", keys.paused_runs, RUN) is not None
    assert held == put_right


async def test_a_rollout_that_cannot_be_stopped_at_a_turn_is_cut_when_the_grace_time_is_over(place: Paused) -> None:
    """Its call never ends. The log has the turn that was sampled, and its call is made again."""
    async with place.worker("w1", lease_ms=LEASE_MS) as (worker, _):
        worker.jobs._grace_s = 0.0
        await place.waiting(1)
        await place.pause()
        await place.becomes(State.PAUSED)
        await until(lambda: not place.provider.alive)
    place.walk.go.set()
    await place.resume()
    await place.end("w2")
    assert (place.walk.sampled, place.walk.called) == ([0, 1, 2, 3], [0, 1, 0, 1, 2, 3])


async def test_a_worker_that_leaves_hands_its_rollout_on_at_the_next_turn(place: Paused) -> None:
    """Again and again, to the end: each turn is sampled once and each call made once, and the state is saved for a node
    on which the sandbox is not.
    """
    for turn in range(1, TURNS):
        place.walk.stands_at = turn
        place.walk.go.clear()
        async with place.worker(f"w{turn}", lease_ms=LEASE_MS) as (worker, _):
            await place.waiting(turn)
            worker.drain()
            place.walk.go.set()
            await until(partial(_empty, worker))
        job = await place.queue.snapshot(place.ref)
        if turn < TURNS - 1:
            assert place.queue.keys.lane(job.stream) == Lane(Stage.RUN, "n1").ahead
            assert await place.checkpoints() == list(range(1, turn + 1))
    assert (place.walk.sampled, place.walk.called) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert (await place.queue.snapshot(place.ref)).stage is Stage.EVAL


@pytest.mark.parametrize("began", ["at the border", "before it"])
async def test_a_large_checkpoint_is_in_the_log_before_its_rollout_ends(
    queue: Queue, began: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file takes the file system's time, in which the attempt must not end."""
    kept, wrote = KeptCheckpoint(b"", "file:100000:abc"), asyncio.Event()

    async def put(_: CheckpointArchives, __: JobRef, data: bytes) -> KeptCheckpoint:
        assert len(data) > SMALL_BYTES
        await wrote.wait()
        return kept

    monkeypatch.setattr(CheckpointArchives, "put", put)
    sent: list[Logged] = []
    logged: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    logged.set_result("logged")

    def send(record: Logged) -> "asyncio.Future[str]":
        sent.append(record)
        return logged

    held = Held(JobRef("acme:r:g:0"), Token("1.1"), EntryId("1-1"), Stage.RUN, None, POOL)
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    box = await FakeProvider(lambda _: "", node=NODE).create(SandboxSpec(owner="test"))
    await box.mark()
    log = JobLog(work, send, [], CheckpointArchives(queue.store))
    await log.enter(box)
    await log.append(b"sampled 0", wait=True)
    await box.write_file("/large", os.urandom(2 * SMALL_BYTES))
    await log.append(b"answered 0", wait=False)
    if began == "before it":
        log.rests(0)
    work.left.asked, rests = True, asyncio.Event()
    work.left.rest = rests.set
    border = asyncio.create_task(log.border())
    async with asyncio.timeout(10):
        while log._writing is None:  # the file is being written
            await asyncio.sleep(0)
        assert not rests.is_set()
        wrote.set()
        await rests.wait()
    border.cancel()
    await log.close()
    assert [record.saved_in for record in sent if (record.data or b"")[:1] == CHECKPOINT] == [kept.file]
    assert log.checkpoint is not None
    assert log.checkpoint.turn == 0
