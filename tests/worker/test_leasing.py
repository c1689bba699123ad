"""Leases come when a job takes long, or asks; most of what is short ends without one."""

import asyncio
import time
from typing import Any

import pytest

from prorl_mq.schema.ids import JobRef, group_of
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Outcome, Stage, events
from prorl_mq.service.cancel import cancel
from prorl_mq.store import jobs
from prorl_mq.store.server.connection import RedisSettings
from tests.support.queue import Queue
from tests.worker.stage import Acting, endless, finish, finished, options, states, until, working
from workers.process import leasing
from workers.stages.work import Move, Work

pytestmark = pytest.mark.anyio


async def told(queue: Queue, ref: JobRef) -> list[str]:
    """The events of a job that has not ended."""
    return [event.event for event in events(ref, await jobs.timeline(queue.store, ref))]


async def leases(queue: Queue) -> int:
    return int(await queue.command("ZCARD", queue.keys.leases))


async def test_what_ends_soon_is_committed_without_a_lease(
    queue: Queue, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leasing, "AFTER_S", 60.0)
    refs = await queue.admitted(n=20)
    calls = []
    async with working(options(settings), Acting(finish)) as worker:
        claim = worker.store.claim

        async def noted(*given: Any) -> Any:
            calls.append(given)
            return await claim(*given)

        monkeypatch.setattr(worker.store, "claim", noted)
        await until_all(queue, refs, State.DONE)
    assert calls == []


async def until_all(queue: Queue, refs: list[JobRef], state: State) -> None:
    async with asyncio.timeout(30):
        while await states(queue, refs) != {state}:
            await asyncio.sleep(0.01)


async def test_what_takes_long_is_leased(queue: Queue, settings: RedisSettings) -> None:
    refs = await queue.admitted(n=3)
    async with working(options(settings), Acting(endless)):
        await until_all(queue, refs, State.LEASED)
        assert await leases(queue) == 3
        assert await told(queue, refs[0]) == ["admit", "claim"]


async def test_who_asks_for_the_lease_goes_on_under_it(
    queue: Queue, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a sandbox, a backend or a stored trajectory: others must know whose it is."""
    monkeypatch.setattr(leasing, "AFTER_S", 60.0)
    [ref] = await queue.admitted()
    seen = []

    async def act(work: Work) -> Move:
        seen.append((await queue.snapshot(ref)).state)
        await work.hold()
        await work.hold()
        seen.append((await queue.snapshot(ref)).state)
        return finished(work)

    async with working(options(settings), Acting(act)):
        await until_all(queue, [ref], State.DONE)
    assert seen == ["queued", "leased"]


async def test_who_asks_in_vain_is_stopped(
    queue: Queue, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart lost the read, and another worker has the entry now."""
    monkeypatch.setattr(leasing, "AFTER_S", 60.0)
    [ref] = await queue.admitted()
    may_ask, went_on = asyncio.Event(), []

    async def act(work: Work) -> Move:
        await may_ask.wait()
        await work.hold()
        went_on.append(ref)
        return finished(work)

    stage = Acting(act)
    async with working(options(settings), stage) as worker:
        await until(lambda: stage.begun == [ref])
        entry = (await queue.snapshot(ref)).entry
        await queue.command("XCLAIM", queue.keys.stage(Stage.INIT), "workers", "other", 0, entry)
        may_ask.set()
        await until(lambda: worker.slots.free == 4)
        assert (went_on, await states(queue, [ref])) == ([], {State.QUEUED})


async def test_a_cancel_that_comes_before_the_start_is_obeyed_at_the_start(
    queue: Queue, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has read the entry, and looks for its group's spec."""
    [ref] = await queue.admitted()
    reading, may_go_on = asyncio.Event(), asyncio.Event()
    stage = Acting(endless)
    async with working(options(settings), stage) as worker:
        begin = worker.claims.begin

        async def slow(read):  # type: ignore[no-untyped-def]
            reading.set()
            await may_go_on.wait()
            return await begin(read)

        await until(lambda: stage.begun == [ref])  # one that is at work keeps the worker from nothing
        monkeypatch.setattr(worker.claims, "begin", slow)
        [other] = await queue.admitted("other", batch="other")
        await asyncio.wait_for(reading.wait(), 20)
        await cancel(queue.store, "job", other)
        await until(lambda: bool(worker.slots._early))
        may_go_on.set()
        await until_all(queue, [other], State.DONE)
        assert stage.begun == [ref]
        assert (await queue.snapshot(other)).outcome == Outcome.CANCELLED


async def test_a_handler_that_holds_up_the_loop_keeps_its_job(
    queue: Queue, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never let the worker claim: the heartbeat did."""
    monkeypatch.setattr(leasing, "AFTER_S", 60.0)
    [ref] = await queue.admitted()
    seen = []

    async def act(work: Work) -> Move:
        time.sleep(2.5)  # noqa: ASYNC251 - two leases and more
        seen.append((await queue.snapshot(ref)).state)
        return finished(work)

    stage = Acting(act)
    async with working(options(settings, lease_ms=900), stage):
        async with asyncio.timeout(30):
            while await states(queue, [ref]) != {State.DONE}:
                await asyncio.sleep(0.05)
    job = await queue.snapshot(ref)
    assert (job.outcome, job.deaths) == (Outcome.COMPLETED, 0)
    assert (stage.begun, seen) == ([ref], [State.LEASED])
    line = await queue.command("HGET", queue.keys.group(group_of(ref)), "t:0")
    assert [each.split("\t")[1] for each in line.decode().splitlines()] == ["admit", "claim", "finish"]
