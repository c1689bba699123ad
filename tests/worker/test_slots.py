"""A slot's end: whatever becomes of what runs in it, its job is ended or left to its lease, and its place is free."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import JobRef, group_of
from prorl_mq.schema.items import Fail, Lane
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Limits, Outcome, SampleRecord, Stage
from prorl_mq.service.cancel import cancel
from prorl_mq.store.server.connection import RedisSettings
from tests.support.queue import Queue
from tests.worker.stage import Act, Acting, endless, finish, finished, made, options, states, until, working
from workers.process import jobs as jobs_module
from workers.process.read import Read
from workers.process.worker import Worker
from workers.stages.work import Move, Work

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def committing(worker: Worker) -> AsyncIterator[None]:
    """Its commits are sent; it reads nothing."""
    task = asyncio.create_task(worker.commits.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def claimed(worker: Worker, queue: Queue) -> list[Work]:
    """Jobs under the worker's lease, which nothing performs yet."""
    entries = await queue.worker(worker.store.name).read(Stage.INIT)
    return [each.work for each in await worker.claims.claim(Read(Lane(Stage.INIT), entries))]


async def test_a_cancel_before_the_first_step_ends_the_job_and_frees_its_slot(
    queue: Queue, settings: RedisSettings
) -> None:
    """The task is cancelled before its coroutine is entered: nothing inside of it can clean up."""
    [ref] = await queue.admitted()
    stage = Acting(endless)
    async with made(options(settings)) as worker, committing(worker):
        [work] = await claimed(worker, queue)
        await cancel(queue.store, "job", ref)
        worker.jobs.start(work, stage)
        worker.slots.told(ref, work.held.token, Outcome.CANCELLED)
        await asyncio.wait_for(worker.slots.empty(), 10)
        assert (worker.slots.free, stage.begun, await states(queue, [ref])) == (4, [], {State.DONE})


async def test_a_group_whose_id_comes_again_with_another_body_is_claimed_with_that(
    queue: Queue, settings: RedisSettings
) -> None:
    """The worker still remembers the spec of the first, which was acknowledged."""
    async with made(options(settings)) as worker:
        questions = []
        for batch in ("first", "second"):
            await queue.admitted("g", batch=batch, payload={"question": batch})
            [work] = await claimed(worker, queue)
            questions.append(work.spec.payload["question"])
            await queue.worker(worker.store.name).finish(work.held)
            await queue.settle()
            assert await queue.ack_all() == 1
            claimed_ms = await queue.store.now_ms()
            async with asyncio.timeout(20):
                while await queue.store.now_ms() == claimed_ms:
                    await asyncio.sleep(0)
        assert questions == ["first", "second"]


async def test_a_lease_lost_before_the_first_step_frees_its_slot(queue: Queue, settings: RedisSettings) -> None:
    [ref] = await queue.admitted()
    stage = Acting(endless)
    async with made(options(settings)) as worker, committing(worker):
        [work] = await claimed(worker, queue)
        worker.jobs.start(work, stage)
        worker.slots.lose((ref, work.held.token))
        await asyncio.wait_for(worker.slots.empty(), 10)
        assert (stage.begun, await states(queue, [ref])) == ([], {State.LEASED})


async def test_a_stop_of_a_worker_with_an_odd_name_ends_nobody(queue: Queue, settings: RedisSettings) -> None:
    """Names are checked at the start; one of an older release may still hold a job."""
    [odd] = await queue.admitted("a", batch="a", n=1)
    await queue.worker("gpu 1").take(Stage.INIT)
    stage = Acting(endless)
    async with working(options(settings), stage) as worker:
        await cancel(queue.store, "job", odd)
        [ours] = await queue.admitted("b", batch="b", n=1)
        await until(lambda: stage.begun == [ours])
        await cancel(queue.store, "job", ours)
        await until(lambda: worker.slots.free == 4)


async def test_a_drain_before_the_first_step_gives_the_job_back(queue: Queue, settings: RedisSettings) -> None:
    [ref] = await queue.admitted()
    async with made(options(settings)) as worker, committing(worker):
        [work] = await claimed(worker, queue)
        worker.jobs.start(work, Acting(endless))
        await worker.jobs.drain()
        assert (worker.slots.held, await states(queue, [ref])) == ({}, {State.DELAYED})


async def test_a_second_stop_does_not_cut_the_clean_up_short(queue: Queue, settings: RedisSettings) -> None:
    """A job that was cancelled is stopped again when its worker drains, or its lease is lost."""
    [ref] = await queue.admitted()
    cleaning, may_end, cleaned = asyncio.Event(), asyncio.Event(), list[str]()

    async def act(work: Work) -> Move:
        try:
            return await endless(work)
        finally:
            cleaning.set()
            await may_end.wait()
            cleaned.append(work.held.ref)

    stage = Acting(act)
    async with made(options(settings)) as worker, committing(worker):
        [work] = await claimed(worker, queue)
        worker.jobs.start(work, stage)
        await until(lambda: stage.begun == [ref])
        worker.slots.lose((ref, work.held.token))
        await asyncio.wait_for(cleaning.wait(), 20)
        worker.slots.lose((ref, work.held.token))
        may_end.set()
        await asyncio.wait_for(worker.slots.empty(), 20)
        assert cleaned == [ref]


def raising(error: BaseException) -> Act:
    async def act(_work: Work) -> Move:
        raise error

    return act


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()],
    ids=lambda e: type(e).__name__,
)
async def test_what_a_stage_raises_ends_the_attempt_and_not_the_worker(
    queue: Queue, settings: RedisSettings, error: BaseException
) -> None:
    refs = await queue.admitted(n=2)
    async with working(options(settings), Acting(raising(error))) as worker:

        async def put_aside() -> bool:
            return await states(queue, refs) == {State.DELAYED}

        await until(put_aside)
        await until(lambda: worker.slots.free == 4)


class Odd(Exception):
    """An error that not even a line of the log can be made of."""

    @property
    def retryable(self) -> bool:
        raise LookupError("nobody knows")

    def __str__(self) -> str:
        raise LookupError("nobody knows")


UNPACKABLE: Any = object()


def returning(make: Callable[[Work], Any]) -> Act:
    async def act(work: Work) -> Move:
        return Move(item=make(work))

    return act


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (raising(OSError("no file a\udcff")), ("OSError", "no file a\\udcff")),
        (raising(Odd()), ("EndUnsaid", "the attempt's end could not be said: LookupError: nobody knows")),
        (returning(lambda work: Fail(work.held, Stage.INIT, UNPACKABLE, "")), ("EndUnsaid", "TypeError")),
    ],
    ids=["text that is no UTF-8", "an error that fails", "what cannot be packed"],
)
async def test_an_end_that_cannot_be_said_ends_the_attempt_by_that(
    queue: Queue, settings: RedisSettings, act: Act, said: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Left to its lease, such a job came back to its worker undone, was given back, and failed so without end."""
    caplog.set_level(logging.CRITICAL, "workers")  # a report of the test cannot be sent with such text, either
    good = await queue.admitted("good", batch="b1")
    [ref] = await queue.admitted("bad", batch="b2", limits=Limits(max_attempts=2, backoff_ms=1))

    async def both(work: Work) -> Move:
        return finished(work) if work.held.ref in good else await act(work)

    async with working(options(settings), Acting(both)) as worker:

        async def done() -> bool:
            for aside in await queue.command("ZRANGE", queue.keys.delayed, 0, -1):
                await queue.store.promote([(JobRef(aside.decode()), queue.keys.stage(Stage.INIT))])
            return await states(queue, [ref, *good]) == {State.DONE}

        await until(done)
        await until(lambda: worker.slots.free == 4)
    packed = await queue.command("HGET", queue.keys.group(group_of(ref)), "s:0")
    record = decode(packed, SampleRecord)
    assert (record.outcome, record.attempt) == (Outcome.INFRA_ERROR, 1)
    assert record.error is not None
    assert record.error.type == said[0]
    assert said[1] in record.error.message


async def test_an_undo_that_raises_does_not_hold_up_a_cancelled_job(queue: Queue, settings: RedisSettings) -> None:
    [ref] = await queue.admitted()

    async def undo() -> None:
        raise OSError("the sandbox's directory cannot be removed")

    async def act(work: Work) -> Move:
        with contextlib.suppress(asyncio.CancelledError):
            await endless(work)
        return finished(work, undo)

    stage = Acting(act)
    async with working(options(settings, lease_ms=600), stage) as worker:
        await until(lambda: stage.begun == [ref])
        await cancel(queue.store, "job", ref)

        async def done() -> bool:
            return await states(queue, [ref]) == {State.DONE}

        await until(done)
        await until(lambda: worker.slots.free == 4)


async def test_a_commit_that_redis_cannot_run_fails_its_job_alone(queue: Queue, settings: RedisSettings) -> None:
    """A key of the wrong kind stands for any error of a call: who shares the call is committed all the same."""
    bad, good = await queue.admitted("bad", batch="b1"), await queue.admitted("good", batch="b2")
    await queue.command("SET", queue.keys.group(group_of(bad[0])), "of the wrong kind")
    both = asyncio.Barrier(2)

    async def act(work: Work) -> Move:
        async with both:
            return finished(work)

    async with working(options(settings), Acting(act)) as worker:

        async def done() -> bool:
            return await states(queue, good) == {State.DONE}

        await until(done)
        await until(lambda: worker.slots.free == 4)


async def test_a_handler_that_ignores_its_cancel_does_not_hold_up_the_end(
    queue: Queue, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The bound is told; the job is its lease's."""
    [ref] = await queue.admitted()
    released = asyncio.Event()

    async def act(work: Work) -> Move:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return finished(work)

    monkeypatch.setattr(jobs_module, "STOP_S", 0.2)
    stage = Acting(act)
    async with made(options(settings)) as worker:
        running = asyncio.create_task(worker.run(stage))
        await until(lambda: stage.begun == [ref])
        worker.drain()
        await asyncio.wait_for(running, 15)
        assert f"job={ref} has not stopped" in caplog.text
        assert await states(queue, [ref]) == {State.LEASED}
        assert worker.slots.held == {}
        released.set()


async def test_no_slot_leaks_while_hundreds_are_cancelled_as_they_start(queue: Queue, settings: RedisSettings) -> None:
    """Cancels meet jobs between claim and first step, in every step, and while they commit."""
    stage = Acting(finish)
    refs: list[JobRef] = []
    async with working(options(settings, slots=8), stage) as worker:
        for number in range(12):
            refs += await queue.admitted(f"g{number}", batch=f"b{number}", n=32)
            await cancel(queue.store, "group", f"acme:r:g{number}")

        async def done() -> bool:
            return await states(queue, refs) == {State.DONE}

        await until(done, within_s=60)
        await until(lambda: worker.slots.free == 8)
