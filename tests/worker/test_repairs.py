"""After each heartbeat slots, tasks and leases are compared: a planted difference is put right, and counted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.items import Lane
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.store import work
from prorl_mq.store.server.connection import RedisSettings
from tests.support.queue import Queue
from tests.worker.stage import SUMS, Acting, endless, finish, options, states, until, working
from workers import metrics
from workers.process.read import Read, Reading
from workers.process.repairs import Repairs
from workers.process.worker import Worker

pytestmark = pytest.mark.anyio

KINDS = ("slot", "task", "lease", "entry")


class Compared:
    """A worker that does not read by itself, and compares when a test says."""

    def __init__(self, worker: Worker, queue: Queue) -> None:
        self.worker = worker
        self.queue = queue.worker(worker.store.name)
        reader = work.Reader(worker.store.redis, worker.store.name)
        self.reading = Reading(worker.settings, worker.store, reader, worker.lanes, held=worker.slots.entries)
        self._repairs = Repairs(worker.slots, worker.jobs, self.reading, worker.claims, worker.settings)

    async def compare(self, stage: Acting) -> dict[str, float]:
        """How many differences of each kind were put right."""
        before = {kind: metrics.repairs.labels(kind)._value.get() for kind in KINDS}
        await self._repairs.compare(stage, idle_ms=0)
        after = {kind: metrics.repairs.labels(kind)._value.get() - before[kind] for kind in KINDS}
        return {kind: count for kind, count in after.items() if count}

    async def delivered(self, group: str = "g") -> list[JobRef]:
        """Jobs whose entries were delivered to the worker, and not claimed."""
        refs = await self.queue.admitted(group, batch=f"b-{group}")
        await self.queue.read(Stage.INIT)
        return refs


@pytest.fixture
async def compared(queue: Queue, settings: RedisSettings) -> AsyncIterator[Compared]:
    worker = Worker(options(settings), SUMS, queue.redis)
    task = asyncio.create_task(worker.commits.run())
    yield Compared(worker, queue)
    await worker.jobs.leave()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_worker_in_order_is_left_alone(compared: Compared) -> None:
    [ref] = await compared.queue.admitted()
    entries = await compared.queue.read(Stage.INIT)
    stage = Acting(endless)
    for claimed in await compared.worker.claims.claim(Read(Lane(Stage.INIT), entries)):
        compared.worker.jobs.start(claimed.work, stage)
    assert await compared.compare(stage) == {}
    assert await states(compared.queue, [ref]) == {State.LEASED}


async def test_an_entry_that_was_delivered_and_not_claimed_is_performed(compared: Compared) -> None:
    stage = Acting(finish)
    refs = await compared.delivered()
    assert await compared.compare(stage) == {"entry": 1}
    await compared.worker.slots.empty()
    assert (stage.begun, await states(compared.queue, refs)) == (refs, {State.DONE})
    assert await compared.compare(stage) == {}


async def test_a_lease_that_nobody_holds_is_given_back(compared: Compared) -> None:
    """What had the slot may have begun: its job starts again, where nothing of the attempt is used."""
    refs = await compared.queue.admitted()
    await compared.queue.take(Stage.INIT)
    stage = Acting(finish)
    assert await compared.compare(stage) == {"lease": 1}
    await compared.worker.slots.empty()
    assert (stage.begun, await states(compared.queue, refs)) == ([], {State.DELAYED})
    assert await compared.compare(stage) == {}


async def test_a_slot_that_nothing_works_for_is_given_back_with_its_job(compared: Compared) -> None:
    refs = await compared.queue.admitted()
    entries = await compared.queue.read(Stage.INIT)
    [claimed] = await compared.worker.claims.claim(Read(Lane(Stage.INIT), entries))
    compared.worker.slots.take(claimed.work)
    stage = Acting(finish)
    assert await compared.compare(stage) == {"slot": 1}
    await compared.worker.slots.empty()
    assert await states(compared.queue, refs) == {State.DELAYED}
    assert await compared.compare(stage) == {}


async def test_what_runs_without_a_slot_is_stopped(compared: Compared) -> None:
    """Its lease is not renewed, and the next look gives its job back."""
    refs = await compared.queue.admitted()
    entries = await compared.queue.read(Stage.INIT)
    [claimed] = await compared.worker.claims.claim(Read(Lane(Stage.INIT), entries))
    stage = Acting(endless)
    compared.worker.jobs.start(claimed.work, stage)
    [slot] = compared.worker.slots.held.values()
    await until(lambda: stage.begun == refs)
    compared.worker.slots.give(slot)
    assert await compared.compare(stage) == {"task": 1, "lease": 1}
    await until(lambda: not compared.worker.jobs.strays())
    await compared.worker.slots.empty()
    assert await states(compared.queue, refs) == {State.DELAYED}
    assert await compared.compare(stage) == {}


async def test_what_a_worker_of_the_same_name_left_is_the_reapers(compared: Compared) -> None:
    """A job that kills its workers is given up by their count, which only the reaper keeps."""
    await compared.queue.admitted()
    await compared.queue.take(Stage.INIT)
    await compared.reading.prepare()
    assert await compared.compare(Acting(finish)) == {}


async def test_what_it_left_is_not_read_again_among_what_this_one_has_missed(compared: Compared) -> None:
    """A restarted worker finds both in its own list of read entries."""
    await compared.queue.admitted("left", batch="left")
    await compared.queue.take(Stage.INIT)
    await compared.reading.prepare()
    missed = await compared.delivered("missed")
    found = await compared.reading.again(10)
    assert [entry.ref for read in found for entry in read.entries] == missed


async def test_a_read_that_was_given_up_may_deliver_after_the_first_look(
    compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis holds its end of a dead connection, and answers a read that waits there, until that is over."""
    monkeypatch.setattr("workers.process.read.UNDER_WAY_S", 600.0)
    given_up = asyncio.create_task(compared.reading.next(4))

    async def blocked() -> bool:
        return b"blocked_clients:1" in await compared.queue.command("INFO", "clients")

    await until(blocked)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert await compared.reading.next(4) == []
    missed = await compared.delivered()
    found = await compared.reading.next(4)
    assert [entry.ref for read in found for entry in read.entries if read.again] == missed


async def test_a_drain_gives_back_what_the_last_read_has_delivered(queue: Queue, settings: RedisSettings) -> None:
    """Nobody else reads it: it would wait for the reaper."""
    stage = Acting(endless)
    async with working(options(settings, slots=1), stage) as worker:
        running = await queue.admitted("g1", batch="b1")
        await until(lambda: stage.begun == running)
        planted = await queue.admitted("g2", batch="b2")  # the worker has no place to read it for
        await queue.worker(worker.store.name).read(Stage.INIT)
    assert (stage.begun, await states(queue, planted)) == (running, {State.DELAYED})


async def test_each_answered_beat_compares(queue: Queue, settings: RedisSettings) -> None:
    stage = Acting(endless)
    async with working(options(settings, lease_ms=600, slots=1), stage) as worker:
        running = await queue.admitted("g1", batch="b1")
        await until(lambda: stage.begun == running)
        planted = await queue.admitted("g2", batch="b2")  # the worker has no place to read it for
        entries = await queue.worker(worker.store.name).read(Stage.INIT)
        [claimed] = await worker.claims.claim(Read(Lane(Stage.INIT), entries))
        worker.slots.take(claimed.work)

        async def given_back() -> bool:
            return await states(queue, planted) == {State.DELAYED}

        await until(given_back)
        await until(lambda: worker.slots.free == 0)  # the worker hears of it after Redis has it


@pytest.mark.parametrize("known", [True, False])
async def test_what_waits_for_its_spec_is_not_read_again(
    queue: Queue, settings: RedisSettings, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read's own answer for the spec is late. The control: a worker that does not know what it is about to begin
    finds the entry once more, performs it, and then once again.
    """
    held = asyncio.Event()
    read = work.specs

    async def late(*given: Any, **about: Any) -> Any:
        found = await read(*given, **about)
        if not held.is_set():
            held.set()
            await released.wait()
        return found

    released = asyncio.Event()
    monkeypatch.setattr(work, "specs", late)
    if not known:
        monkeypatch.setattr(Worker, "_entries", lambda self: self.slots.entries())
    stage = Acting(finish)
    async with working(options(settings, lease_ms=600), stage):
        refs = await queue.admitted()
        await held.wait()
        if known:
            await asyncio.sleep(1.0)  # beats and looks pass
        else:
            await until(lambda: stage.begun == refs)
        released.set()
        await until(lambda: len(stage.begun) == (1 if known else 2))
    assert set(stage.begun) == set(refs)
