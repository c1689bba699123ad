"""A job in RUN whose turns are logged: what becomes of it, of its log and of its sandbox when its worker stops."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from prorl_mq.duties.reap import decide
from prorl_mq.rules.memory import Memory
from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.ids import EntryId, JobRef, Token
from prorl_mq.schema.items import Advance, Claim, Held, Lane, Logged
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Outcome, Stage, events
from prorl_mq.schema.turns import CHECKPOINT, PART, WORLD, Archive, Checkpoint, World, numbered
from prorl_mq.service.cancel import cancel
from prorl_mq.store import jobs
from prorl_mq.store.payloads.checkpoints import CheckpointArchives, CheckpointSkipped, KeptCheckpoint
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import RedisSettings
from sandbox.errors import LinkCut, SandboxBusy, SandboxError, SandboxOverrun, SandboxTaken
from sandbox.fake import FakeProvider, FakeSandbox
from sandbox.isolators.layers.copying import Copies
from sandbox.protocol import Fenced, Sandbox, SandboxSpec, Saved
from tests.support.queue import POOL, Queue, spec
from tests.worker.stage import Named, made, options, until
from workers import metrics
from workers.agent.journal import Journal, LogDiffers
from workers.handler import Ran, Run, SandboxLost
from workers.inference.protocol import InferenceError
from workers.process.worker import Worker
from workers.stages import job_log
from workers.stages.job_log import JobLog
from workers.stages.log_faults import RestoreFailed
from workers.stages.registry import Registry
from workers.stages.run import RunStage
from workers.stages.save_pace import SavePace
from workers.stages.stage import packed
from workers.stages.work import Carried, Work

pytestmark = pytest.mark.anyio
NODE = "n1"


class Turns(Named):
    """Three turns of two records. An attempt continues from the second one when it is told to."""

    volatile = (r"seed \d+",)

    def __init__(self) -> None:
        super().__init__("sums")
        self.found: list[list[bytes]] = []
        self.rebuilt: list[bool] = []
        self.restored: list[int] = []
        self.saves = False
        self.go, self.ends = asyncio.Event(), asyncio.Event()
        self.ends.set()
        self.waits: list[int] = []  # the places that attempts have waited at

    async def run(self, context: Run) -> Ran:
        log, box = context.log, context.sandbox
        assert log is not None
        assert box is not None
        assert log.volatile == self.volatile
        self.found.append(list(log.before))
        self.rebuilt.append(log.rebuilds)
        self.restored.append(log.restored)
        if log.rebuilds:
            await log.rebuilt()
        for place in range(len(log.before), 6):
            await log.append(b"record %d" % place, wait=place % 2 == 0)
            if place % 2 and self.saves:
                log.rests(place // 2)
                await log.acts()
            if place in {2, 4}:
                self.waits.append(place)
                await (self.go if place == 2 else self.ends).wait()
            if place % 2 == 0:
                await box.named(f"{place // 2}.0").bash("true")
                if self.saves:
                    await box.write_file("/steps", b"%d" % (place // 2))
        return Ran(trajectory=None, export="done")


class Place:
    """A node with a job in RUN, and the sandbox that INIT has made for it."""

    def __init__(self, queue: Queue, settings: RedisSettings) -> None:
        self.queue, self.settings = queue, settings
        self.provider = FakeProvider(lambda _: "", node=NODE)
        self.copies: Copies | None = None
        self.family = Turns()
        self.ref = JobRef("")

    async def prepare(self) -> None:
        [self.ref] = await self.queue.admitted()
        await self.init()

    async def init(self) -> Sandbox:
        """INIT's part: a new sandbox."""
        if (await self.queue.snapshot(self.ref)).state == State.DELAYED:
            await self.queue.backed_off(self.ref)
            stream = (await self.queue.snapshot(self.ref)).stream
            await self.queue.store.promote([(self.ref, stream)])
        [held] = await self.queue.take(Stage.INIT, front=True) or await self.queue.take(Stage.INIT)
        box = await self.provider.create(SandboxSpec(owner="test"))
        await box.mark()
        await self.queue.store.advance([Advance(held, NODE, packed(Carried(sandbox=box.handle)))])
        return box

    @asynccontextmanager
    async def worker(self, name: str, *, lease_ms: int = 60_000) -> AsyncIterator[tuple[Worker, "asyncio.Task[None]"]]:
        registry = Registry([self.family])
        about = replace(options(self.settings, name=name, node=NODE, lease_ms=lease_ms), stage=Stage.RUN)
        async with made(about, registry) as worker:
            worker.store.payloads = self.queue.store.payloads
            no_policy: Any = None
            send = worker.turn_logs.send
            stage = RunStage(registry, self.provider, worker.store, no_policy, NODE, send, self.copies)
            task = asyncio.create_task(worker.run(stage))
            try:
                yield worker, task
            finally:
                worker.drain()
                await task

    async def waiting(self, place: int = 2) -> None:
        await until(lambda: place in self.family.waits)

    async def at(self, stage: Stage) -> None:
        async def there() -> bool:
            return (await self.queue.snapshot(self.ref)).stage is stage

        await until(there)

    async def log(self) -> list[bytes]:
        return await jobs.log(self.queue.store, self.ref)


@pytest.fixture
async def place(queue: Queue, settings: RedisSettings) -> Place:
    found = Place(queue, settings)
    await found.prepare()
    return found


DIGEST = hashlib.blake2b(msgspec.msgpack.encode(([("/steps", b"0")], [])), digest_size=20).hexdigest()
OLDER = encode(Archive("older", msgspec.msgpack.encode(([("/steps", b"older")], []))))
BEFORE = [b"record 0", b"record 1", b"record 2"]


def logged(box: str, *records: bytes) -> list[bytes]:
    """The records as Redis has them: before the first one, no version was announced and which sandbox it is."""
    return [b"w" + encode(World(None, box)), *(numbered(*each) for each in enumerate(records))]


async def test_a_drained_worker_leaves_the_job_to_the_next_one_of_its_node(place: Place) -> None:
    async with place.worker("w1"):
        await place.waiting()
    job = await place.queue.snapshot(place.ref)
    assert (job.state, job.stage) == (State.QUEUED, Stage.RUN)
    assert place.queue.keys.lane(job.stream) == Lane(Stage.RUN, NODE).ahead
    [box] = place.provider.alive.values()
    assert await place.log() == logged(box.handle.sandbox_id, *BEFORE)
    place.family.go.set()
    async with place.worker("w2"):
        await place.at(Stage.EVAL)
    assert place.family.found == [[], BEFORE]
    assert [attempt for attempt, _ in box.fences] == [0, 1]
    assert (await place.log(), len(place.provider.alive)) == ([], 0)


@pytest.mark.parametrize("given_back", [True, False])
async def test_an_attempt_that_is_given_back_may_log_what_it_has_and_knows_that(
    place: Place, monkeypatch: pytest.MonkeyPatch, given_back: bool
) -> None:
    """One whose job was cancelled knows that it is for nothing."""
    leaves: list[bool] = []
    append = JobLog.append

    async def cut(log: JobLog, record: bytes, *, wait: bool) -> None:
        await append(log, record, wait=wait)
        try:
            await asyncio.Event().wait()
        finally:
            leaves.append(log.leaves)
            if log.leaves:
                await log.part(b"the rest", wait=True)

    monkeypatch.setattr(JobLog, "append", cut)
    async with place.worker("w1"):
        await until(place.log)
        if not given_back:
            await cancel(place.queue.store, "job", place.ref)
            await until(lambda: bool(leaves))
    assert leaves == [given_back]
    assert (await place.log())[-1:] == [PART + b"the rest"] * given_back


async def test_a_job_that_is_cancelled_leaves_nothing(place: Place) -> None:
    async with place.worker("w1"):
        await place.waiting()
        await cancel(place.queue.store, "job", place.ref)

        async def over() -> bool:
            return (await place.queue.snapshot(place.ref)).state == State.DONE

        await until(over)
        assert (await place.log(), len(place.provider.alive)) == ([], 0)


async def test_a_worker_that_has_lost_its_lease_leaves_the_sandbox_to_who_has_it(place: Place) -> None:
    async with place.worker("w1", lease_ms=900) as (worker, _):
        await place.waiting()
        [slot] = worker.slots.held.values()
        await place.queue.overdue(place.ref)
        state, item = decide(await place.queue.snapshot(place.ref), spec(), leased=True)
        assert await place.queue.store.reap(Verb.REAP, state, [item]) == ["requeued"]
        place.family.ends.clear()
        await place.waiting(4)  # it is the node's only worker, so it has read the job again
        await until(lambda: slot.lost and slot not in worker.slots.held.values())
        assert (place.family.found, len(place.provider.alive)) == ([[], BEFORE], 1)
        place.family.ends.set()
        await place.at(Stage.EVAL)


async def test_a_sandbox_that_has_begun_more_than_was_logged_is_given_up(place: Place) -> None:
    async with place.worker("w1"):
        await place.waiting()
    [box] = place.provider.alive.values()
    box.named("2.0")
    async with place.worker("w2"):
        await place.at(Stage.INIT)
    assert (len(place.family.found), len(place.provider.alive)) == (1, 0)
    assert await place.log() == logged(box.handle.sandbox_id, *BEFORE), "a new one can be made as it was"
    told = events(place.ref, await jobs.timeline(place.queue.store, place.ref))
    assert "has begun calls of turn 2, and the log ends with turn 1" in told[-1].detail


async def lost(place: Place) -> Sandbox:
    """A job whose sandbox was gone when its next attempt came, with the one that INIT has made instead."""
    async with place.worker("w1"):
        await place.waiting()
    place.provider.alive.clear()
    async with place.worker("w2"):
        await place.at(Stage.INIT)
    return await place.init()


async def test_a_job_whose_sandbox_is_lost_continues_in_a_new_one(place: Place) -> None:
    """The log says so before anything new is done in it, and not again to whoever follows."""
    old = next(iter(place.provider.alive))
    box = await lost(place)
    place.family.ends.clear()
    place.family.go.set()
    async with place.worker("w3"):
        await place.waiting(4)
        again = [b"w" + encode(World(None, box.handle.sandbox_id, whole)) for whole in (False, True)]
        assert await place.log() == [*logged(old, *BEFORE), *again, numbered(3, b"record 3"), numbered(4, b"record 4")]
    place.family.ends.set()
    async with place.worker("w4"):
        await place.at(Stage.EVAL)
    assert place.family.found == [[], BEFORE, [*BEFORE, b"record 3", b"record 4"]]
    assert place.family.rebuilt == [False, True, False]


async def saved(place: Place) -> dict[str, bytes]:
    """A job whose sandbox was lost after it was saved; the files of the one that its next attempt continues in."""
    place.family.saves = True
    box = await lost(place)
    place.family.ends.clear()
    place.family.go.set()
    async with place.worker("w3"):
        await place.waiting(4)
        files = dict(place.provider.alive[box.handle.sandbox_id].files)
        place.family.ends.set()
        await place.at(Stage.EVAL)
    return files


async def test_a_new_sandbox_begins_with_the_newest_checkpoint(place: Place) -> None:
    files = await saved(place)
    assert files == {"/steps": b"0"}, "turn 0 has left it"
    assert (place.family.rebuilt, place.family.restored) == ([False, True], [-1, 0])
    assert await place.log() == []
    assert await jobs.saved(place.queue.store, place.ref) == (b"", "")


async def test_a_state_that_cannot_be_restored_whole_is_not_kept(place: Place) -> None:
    for box in place.provider.alive.values():
        box.lost = ("a process in the background",)
    await saved(place)
    assert (place.family.rebuilt, place.family.restored) == ([False, True], [-1, -1])


async def test_a_state_that_is_too_large_is_not_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "CONTENT_BYTES", 0)
    await saved(place)
    assert (place.family.rebuilt, place.family.restored) == ([False, True], [-1, -1])


@pytest.mark.parametrize("found", [b"", b"no archive", OLDER, encode(Archive(DIGEST, b"no archive"))])
async def test_a_checkpoint_that_cannot_be_restored_is_not_tried_again(place: Place, found: bytes) -> None:
    place.family.saves = True
    await lost(place)
    assert decode((await jobs.saved(place.queue.store, place.ref))[0], Archive).digest == DIGEST
    await place.queue.command("HSET", place.queue.keys.job(place.ref), "saved", found)
    async with place.worker("w3"):
        await place.at(Stage.INIT)
    assert len(place.family.found) == 1
    told = events(place.ref, await jobs.timeline(place.queue.store, place.ref))
    assert "cannot be restored" in told[-1].detail
    place.family.go.set()
    await place.init()
    async with place.worker("w4"):
        await place.at(Stage.EVAL)
    assert (place.family.rebuilt, place.family.restored) == ([False, True], [-1, -1])


@pytest.mark.parametrize(
    ("fault", "raised", "tried_again"),
    [
        (SandboxOverrun("it had too much"), RestoreFailed, False),
        (SandboxError("no answer in time"), RestoreFailed, False),
        (LinkCut("away"), LinkCut, True),
        (SandboxBusy("it is being restored"), SandboxBusy, True),
        (SandboxTaken("another attempt has it"), SandboxTaken, True),
    ],
)
async def test_a_checkpoint_that_a_sandbox_dies_of_is_not_tried_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, fault: SandboxError, raised: type[Exception], *, tried_again: bool
) -> None:
    """Else each attempt dies of it, until there are no more. One that did not reach the sandbox says nothing of it."""

    async def dies(_: FakeSandbox, __: bytes) -> None:
        raise fault

    monkeypatch.setattr(FakeSandbox, "restore", dies)
    sent: list[bytes] = []

    def send(record: Logged) -> "asyncio.Future[str]":
        sent.append(record.data or b"")
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answer.set_result("logged")
        return answer

    held = Held(JobRef("acme:r:g:0"), Token("1.1"), EntryId("1-1"), Stage.RUN, None, POOL)
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    point = CHECKPOINT + encode(Checkpoint(0, "d"))
    before = [WORLD + encode(World(None, "another")), numbered(0, b"one"), numbered(1, b"two"), point]
    log = JobLog(work, send, before, CheckpointArchives(queue.store))
    await log.enter(await FakeProvider(lambda _: "", node=NODE).create(SandboxSpec(owner="test")))
    with pytest.raises(raised):
        await log.restore(encode(Archive("d", b"state")))
    later = JobLog(work, send, [*before, *sent], CheckpointArchives(queue.store))
    assert (later.checkpoint is not None) is tried_again


async def test_an_attempt_that_died_while_it_made_calls_again_leaves_a_sandbox_that_nobody_uses(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where it had made none yet: it may have restored a half of a checkpoint."""
    box = await lost(place)
    begun = asyncio.Event()

    async def never(_: Turns, __: Run) -> Ran:
        begun.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(Turns, "run", never)
        async with place.worker("w3"):
            await until(begun.is_set)
    assert list(place.provider.alive) == [box.handle.sandbox_id]
    async with place.worker("w4"):
        await place.at(Stage.INIT)
    assert (len(place.family.found), place.provider.alive) == (1, {})


async def test_a_new_sandbox_that_has_a_part_of_the_calls_is_given_up(place: Place) -> None:
    """Nobody knows how far the attempt that made them again has come."""
    box = await lost(place)
    box.named("0.0")
    async with place.worker("w3"):
        await place.at(Stage.INIT)
    assert len(place.family.found) == 1
    told = events(place.ref, await jobs.timeline(place.queue.store, place.ref))
    assert "has a part of the rollout's calls" in told[-1].detail
    place.family.go.set()
    await place.init()
    async with place.worker("w4"):
        await place.at(Stage.EVAL)
    assert place.family.found == [[], BEFORE]


class Odd(Exception):
    """Raised by a handler."""


@pytest.mark.parametrize(
    ("error", "grows", "kept"),
    [
        (Odd("ours"), False, False),
        (Odd("ours"), True, True),
        (InferenceError("no backend"), False, True),
        (LogDiffers("another one"), True, False),
        (SandboxLost("gone under the agent", None), True, False),
    ],
)
async def test_what_a_failure_of_a_later_attempt_costs(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception, grows: bool, kept: bool
) -> None:
    """Infrastructure costs no turns. Code that fails before any new turn would fail there each time."""
    async with place.worker("w1"):
        await place.waiting()

    async def run(_: Turns, context: Run) -> Ran:
        assert context.log is not None
        if grows:
            await context.log.append(b"record 3", wait=True)
        raise error

    monkeypatch.setattr(Turns, "run", run)
    async with place.worker("w2"):
        await place.at(Stage.INIT)
    assert bool(await place.log()) == kept
    assert place.provider.alive == {}


async def test_a_sandbox_whose_whole_log_redis_has_lost_is_given_up(place: Place) -> None:
    """Its worker was drained before it could log again. Else the next one's first call gets this one's answer."""
    async with place.worker("w1"):
        await place.waiting()
        fields = ("log:0", "log:1", "log:2", "log:3", "logged")
        await place.queue.command("HDEL", place.queue.keys.job(place.ref), *fields)
    async with place.worker("w2"):
        await place.at(Stage.INIT)
    assert (place.family.found, len(place.provider.alive)) == ([[]], 0)


@pytest.mark.parametrize("fenced", [True, False])
async def test_a_sandbox_is_not_used_again_where_redis_has_lost_that_there_was_an_attempt(
    place: Place, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """Its read, claim and log are the lost tail, so that the next worker reads the same entry and counts no attempt
    either. The control takes the fence out.
    """

    async def no_fence(*_: object) -> Fenced:
        return Fenced(boot="fake", turn=-1, begun=())

    if not fenced:
        monkeypatch.setattr(FakeSandbox, "fence", no_fence)
    async with place.worker("w1"):
        await place.waiting()
        [old] = place.provider.alive
        await lose_first_attempt(place)
        if not fenced:
            async with place.worker("w2"):
                await until(lambda: len(place.family.found) == 2)
                assert list(place.provider.alive) == [old], "both have it"
                place.family.go.set()
            return
        async with place.worker("w2"):
            await place.at(Stage.INIT)
    assert (place.family.found, len(place.provider.alive)) == ([[]], 0)
    told = events(place.ref, await jobs.timeline(place.queue.store, place.ref))
    assert f"another attempt of its job has sandbox {old}" in told[-1].detail
    place.family.go.set()
    await place.init()
    async with place.worker("w3"):
        await place.at(Stage.EVAL)


async def lose_first_attempt(place: Place) -> None:
    """Makes Redis as it was before the job's entry was read in RUN."""
    key, lane = place.queue.keys.job(place.ref), place.queue.keys.stage(Stage.RUN, NODE)
    gone = ("log:0", "log:1", "log:2", "log:3", "logged", "progress", "until", "claimed")
    await place.queue.command("HDEL", key, *gone)
    await place.queue.command("HSET", key, "state", State.QUEUED, "owner", "")
    await place.queue.command("ZREM", place.queue.keys.leases, place.ref)
    entry = await place.queue.command("HGET", key, "entry")
    await place.queue.command("XACK", lane, "workers", entry)
    await place.queue.command("XGROUP", "SETID", lane, "workers", "0")


async def test_what_redis_has_lost_is_logged_again_before_the_next_call(place: Place) -> None:
    async with place.worker("w1"):
        await place.waiting()
        key = place.queue.keys.job(place.ref)
        await place.queue.command("HDEL", key, "log:2", "log:3")
        await place.queue.command("HSET", key, "logged", 2)
        place.family.ends.clear()
        place.family.go.set()
        await place.waiting(4)
        [box] = place.provider.alive.values()
        assert await place.log() == logged(box.handle.sandbox_id, *BEFORE, b"record 3", b"record 4")
        place.family.ends.set()
        await place.at(Stage.EVAL)
    assert place.family.found == [[]]


async def test_where_redis_has_lost_the_claim_too_the_rollout_goes_on_under_its_next_lease(place: Place) -> None:
    """Else it waits until its time is over, and is cut."""
    async with place.worker("w1", lease_ms=900):
        await place.waiting()
        key = place.queue.keys.job(place.ref)
        gone = ("log:0", "log:1", "log:2", "log:3", "logged", "progress", "until")
        await place.queue.command("HDEL", key, *gone)
        await place.queue.command("HSET", key, "state", State.QUEUED, "owner", "")
        await place.queue.command("ZREM", place.queue.keys.leases, place.ref)
        place.family.go.set()
        await place.at(Stage.EVAL)
    assert place.family.found == [[]]


@pytest.mark.parametrize("memory", [Memory(71, 100, 1000), Memory(71, 0, 100)], ids=["its limit", "its host"])
async def test_where_redis_is_full_a_rollout_goes_on_unlogged_and_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch, memory: Memory
) -> None:
    async def full(_: Any) -> Memory:
        return memory

    before = metrics.unlogged._value.get()
    async with place.worker("w1"):
        await place.waiting()
        monkeypatch.setattr(fitness, "memory", full)
        place.family.go.set()
        await place.at(Stage.EVAL)
    assert metrics.unlogged._value.get() - before == 1
    told = events(place.ref, await jobs.timeline(place.queue.store, place.ref))
    assert ("log", "given up") in [(event.event, event.detail) for event in told]
    assert place.family.found == [[]]


async def test_where_redis_is_full_a_worker_that_has_lost_its_lease_gives_up_no_log_and_no_sandbox(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_: Any) -> Memory:
        return Memory(71, 100)

    async with place.worker("w1", lease_ms=900) as (worker, _):
        await place.waiting()
        [slot] = worker.slots.held.values()
        monkeypatch.setattr(fitness, "memory", full)
        place.family.ends.clear()
        await place.queue.overdue(place.ref)
        state, item = decide(await place.queue.snapshot(place.ref), spec(), leased=True)
        assert await place.queue.store.reap(Verb.REAP, state, [item]) == ["requeued"]
        place.family.go.set()
        await place.waiting(4)  # it has read the job again
        await until(lambda: slot.lost and slot not in worker.slots.held.values())
        assert len(place.provider.alive) == 1
        place.family.ends.set()
        await place.at(Stage.EVAL)


@pytest.mark.parametrize("begun_at", [7, None])
async def test_the_version_that_counts_is_the_one_that_was_announced_when_the_rollout_began(
    queue: Queue, begun_at: int | None
) -> None:
    """Else a death makes old tokens look young."""
    held = Held(JobRef("acme:r:g:0"), Token("1.1"), EntryId("1-1"), Stage.RUN, None, POOL)
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    sent: list[bytes] = []

    def send(record: Logged) -> "asyncio.Future[str]":
        assert record.data is not None
        sent.append(record.data)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answer.set_result("logged")
        return answer

    first = JobLog(work, send, [], CheckpointArchives(queue.store))
    assert first.begin(begun_at) == begun_at
    await first.append(b"one", wait=True)
    await first.append(b"two", wait=False)
    second = JobLog(work, send, sent, CheckpointArchives(queue.store))
    assert second.begin(9) == begun_at
    assert second.before == [b"one", b"two"]


@pytest.mark.parametrize("end", ["slow", "broken"])
async def test_a_save_that_takes_long_or_fails_is_given_up_and_counted(
    queue: Queue, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the policy's next calls wait for what one of its objects does when it is saved."""
    monkeypatch.setattr(job_log, "_PATIENCE_S", 0.1)
    held = Held(JobRef("acme:r:g:0"), Token("1.1"), EntryId("1-1"), Stage.RUN, None, POOL)
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    answered.set_result("logged")
    box = await FakeProvider(lambda _: "", node=NODE).create(SandboxSpec(owner="test"))
    cut: list[bool] = []

    async def save(*, max_bytes: int = 1 << 20, known: str | None = None) -> Saved:
        del known
        if end == "broken":
            raise SandboxError(f"it does not answer, for {max_bytes} bytes")
        try:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]
        finally:
            cut.append(True)

    box.save = save  # type: ignore[method-assign]
    log = JobLog(
        Work(held=held, claim=Claim("claimed", held.token), spec=spec()),
        lambda _: answered,
        [],
        CheckpointArchives(queue.store),
    )
    await log.enter(box)
    await log.append(b"one", wait=True)
    before = metrics.unsaved._value.get()
    log.rests(0)
    async with asyncio.timeout(10):
        await log.acts()
    assert (cut, metrics.unsaved._value.get() - before) == ([True] if end == "slow" else [], 1)
    assert log.checkpoint is None


async def test_nothing_is_noted_behind_a_log_that_was_given_up(queue: Queue) -> None:
    """Else a later attempt finds a checkpoint and no turns, and nothing that names the sandbox."""
    held = Held(JobRef("acme:r:g:0"), Token("1.1"), EntryId("1-1"), Stage.RUN, None, POOL)
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    sent: list[Logged] = []
    answers = ["logged", "logged", "full", "dropped"]

    def send(record: Logged) -> "asyncio.Future[str]":
        sent.append(record)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answer.set_result(answers[len(sent) - 1])
        return answer

    box = await FakeProvider(lambda _: "", node=NODE).create(SandboxSpec(owner="test"))
    save, go = box.save, asyncio.Event()

    async def slow(*, max_bytes: int = 1 << 20, known: str | None = None) -> Saved:
        await go.wait()
        return await save(max_bytes=max_bytes, known=known)

    await box.mark()
    box.save = slow  # type: ignore[method-assign]
    log = JobLog(work, send, [], CheckpointArchives(queue.store))
    await log.enter(box)
    await log.append(b"one", wait=True)
    log.rests(0)
    await log.append(b"two", wait=True)
    go.set()
    await log.acts()
    assert [record.data is None for record in sent] == [False, False, False, True]


async def test_a_state_that_could_not_be_kept_is_kept_later_though_nothing_has_changed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process ran, then other archives were being written; the third time nothing is in its way."""
    held = Held(JobRef("acme:r:g:0"), Token("1.1"), EntryId("1-1"), Stage.RUN, None, POOL)
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    answered.set_result("logged")
    archives, skips = CheckpointArchives(queue.store), ["others are being written"]
    put = archives.put

    async def once(ref: JobRef, data: bytes) -> KeptCheckpoint:
        if skips:
            raise CheckpointSkipped(skips.pop())
        return await put(ref, data)

    monkeypatch.setattr(archives, "put", once)
    monkeypatch.setattr(SavePace, "due", lambda *_: True)
    box = await FakeProvider(lambda _: "", node=NODE).create(SandboxSpec(owner="test"))
    await box.mark()
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    log = JobLog(work, lambda _: answered, [], archives)
    await log.enter(box)
    await log.append(b"one", wait=True)
    await box.write_file("/steps", b"1")
    kept = []
    for lost_now in (("process x",), (), ()):
        box.lost = lost_now
        log.rests(0)
        await log.acts()
        kept.append(log.checkpoint is not None)
    assert kept == [False, False, True]


async def test_a_log_that_lacks_a_record_takes_all_that_follow(place: Place) -> None:
    """Records have places. Were those behind a gap counted from it, the next one would be taken for a repeat."""
    place.family.saves = True
    async with place.worker("w1"):
        await place.waiting()
    [*_, note, _] = kept = await place.log()
    assert note[:1] == CHECKPOINT
    await place.queue.command("HDEL", place.queue.keys.job(place.ref), f"log:{len(kept) - 2}")
    place.family.ends.clear()
    place.family.go.set()
    async with place.worker("w2"):
        await place.waiting(4)
        turns = [record for record in await place.log() if record[:1] == b"t"]
        assert turns == [numbered(number, b"record %d" % number) for number in range(5)]
        place.family.ends.set()
        await place.at(Stage.EVAL)


async def test_a_log_without_its_first_record_is_not_taken_for_one_of_this_sandbox(queue: Queue) -> None:
    held = Held(JobRef("acme:r:g:0"), Token("1.1"), EntryId("1-1"), Stage.RUN, None, POOL)
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    answered.set_result("logged")
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    for before, rebuilds in (([b"", numbered(0, b"one"), numbered(1, b"two")], True), ([], False)):
        log = JobLog(work, lambda _: answered, before, CheckpointArchives(queue.store))
        await log.enter(await FakeProvider(lambda _: "", node=NODE).create(SandboxSpec(owner="test")))
        assert log.rebuilds is rebuilds


async def test_a_log_that_was_given_up_in_a_new_sandbox_stays_so(queue: Queue) -> None:
    """Redis has room again before all calls are made again. A log of that alone would let a drain end the rollout in
    front of its next turn, though no attempt could continue there.
    """
    held = Held(JobRef("acme:r:g:0"), Token("1.1"), EntryId("1-1"), Stage.RUN, None, POOL)
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    sent: list[Logged] = []

    def send(record: Logged) -> "asyncio.Future[str]":
        sent.append(record)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answer.set_result("dropped" if record.data is None else "full" if len(sent) == 1 else "logged")
        return answer

    box = await FakeProvider(lambda _: "", node=NODE).create(SandboxSpec(owner="test"))
    before = [WORLD + encode(World(None, "another")), numbered(0, b"one"), numbered(1, b"two")]
    log, unlogged = JobLog(work, send, before, CheckpointArchives(queue.store)), metrics.unlogged._value.get()
    await log.enter(box)
    assert log.rebuilds
    await log.rebuilt()
    await log.part(b"three")
    await log.note("why")
    work.left.asked = True
    async with asyncio.timeout(10):
        await log.border()
    assert ([record.data is None for record in sent], log.continues) == ([False, True], False)
    assert metrics.unlogged._value.get() - unlogged == 1


async def test_parts_that_redis_has_lost_are_logged_again_with_the_next_one(queue: Queue) -> None:
    """Else all that comes until the completion's end would lie behind a gap."""
    in_redis: list[bytes | None] = []

    def send(record: Logged) -> "asyncio.Future[str]":
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        behind = record.place - len(in_redis)
        if behind == 0:
            in_redis.append(record.data)
        answer.set_result(str(len(in_redis)) if behind > 0 else "already" if behind else "logged")
        return answer

    held = Held(JobRef("acme:r:g:0"), Token("1-0.1"), EntryId("1-1"), Stage.RUN, None, POOL)
    work = Work(held=held, claim=Claim("claimed", held.token), spec=spec())
    log = JobLog(work, send, [], CheckpointArchives(queue.store))
    for part in (b"0", b"1"):
        await log.part(part)
    del in_redis[1:]
    for part in (b"2", b"3"):
        await log.part(part)
    assert in_redis[1:] == [b"p0", b"p1", b"p2", b"p3"]


async def test_a_log_is_of_one_rollout(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the calls of the second one get the results of the first one's, for they have the same names."""

    async def run(_: Turns, context: Run) -> Ran:
        Journal(context.log)
        Journal(context.log)
        return Ran(trajectory=None)

    monkeypatch.setattr(Turns, "run", run)
    async with place.worker("w1"):

        async def over() -> bool:
            return (await place.queue.snapshot(place.ref)).state == State.DONE

        await until(over)
    assert (await place.queue.snapshot(place.ref)).outcome == Outcome.INFRA_ERROR


async def test_the_sandbox_is_there_until_the_end_of_run_is_committed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker that dies in between has lost all turns."""
    seen: list[int] = []
    async with place.worker("w1") as (worker, _):
        advance = worker.store.advance

        async def noted(items: Any) -> list[str]:
            seen.append(len(place.provider.alive))
            return await advance(items)

        monkeypatch.setattr(worker.store, "advance", noted)
        place.family.go.set()
        await place.at(Stage.EVAL)
    assert (seen, len(place.provider.alive)) == ([1], 0)


async def test_a_worker_that_is_stopped_before_it_has_read_the_log_leaves_the_sandbox(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.worker("w1"):
        await place.waiting()
    asked = asyncio.Event()

    async def never(*_: Any) -> list[bytes]:
        asked.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    monkeypatch.setattr(jobs, "log", never)
    async with place.worker("w2") as (worker, _):
        await until(asked.is_set)
        [slot] = worker.slots.held.values()
        worker.slots.lose(slot.title)
        await until(lambda: not worker.slots.held)
        assert len(place.provider.alive) == 1
