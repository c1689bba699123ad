"""Pausing and resuming a job, or a run with all its jobs."""

from collections.abc import AsyncIterator, Sequence
from typing import NoReturn

from prorl_mq.errors import Conflict, NotFound
from prorl_mq.schema.ids import JobRef, RunRef, asked_job, public
from prorl_mq.schema.items import Pause, Resume
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.status import PauseAnswer, PauseEnd, PauseOrder
from prorl_mq.store import groups, jobs, runs
from prorl_mq.store.jobs import Snapshot
from prorl_mq.store.store import Store, batched

TRIES = 5  # a job may move between the look and the verb


async def pause(store: Store, kind: str, ref: str, order: PauseOrder) -> PauseAnswer:
    """Pauses a job, or a run: it admits nothing, and all its jobs are paused. Idempotent; a repeat sets another end.

    Raises `NotFound`, or `Conflict` for a job that has ended, is to end, or was not admitted yet.
    """
    if kind == "job":
        words = await _pause(store, [JobRef(ref)], order)
        if not words or words[0] not in {"parked", "pausing"}:
            await _refuse(store, JobRef(ref), words[0] if words else "gone")
    else:
        await _expect(store, RunRef(ref))
        await store.hold_run(RunRef(ref), await store.now_ms() + order.for_ms)  # first: what it admits is then paused
        words = [word async for page in _jobs(store, RunRef(ref)) for word in await _pause(store, page, order)]
    parked, pausing = words.count("parked"), words.count("pausing")
    return PauseAnswer(id=public(ref), state="pausing" if pausing else "paused", jobs=parked, pausing=pausing)


async def resume(store: Store, kind: str, ref: str) -> PauseAnswer:
    """Resumes a job, or a run with all its jobs, also those that were paused alone. Idempotent. Raises as `pause`."""
    if kind == "job":
        words = await resume_jobs(store, [JobRef(ref)])
        [job] = await jobs.read(store, [JobRef(ref)])
        if job is None or job.state in {State.DONE, State.STOPPING}:
            await _refuse(store, JobRef(ref), job.state if job else "gone")
    else:
        await _expect(store, RunRef(ref))
        words = [word async for page in _jobs(store, RunRef(ref)) for word in await resume_jobs(store, page)]
        await store.let_run(RunRef(ref))
    return PauseAnswer(id=public(ref), state="resumed", jobs=words.count("resumed"))


async def resume_jobs(store: Store, refs: Sequence[JobRef], *, over: bool = False) -> list[str]:
    """Resumes those of the jobs that are paused, with `over` those whose pause has ended; the words of the verb."""
    words, left = list[str](), list(refs)
    for _ in range(TRIES):
        looked = [job for job in await jobs.read(store, left) if job and job.pause_ms]
        left = []
        for chunk in batched(looked):
            said = await store.resume(
                [Resume(job.ref, job.token, continues_with(store, job)) for job in chunk], over=over
            )
            words += [word for word in said if word != "moved"]
            left += [job.ref for job, word in zip(chunk, said, strict=True) if word == "moved"]
        if not left:
            break
    return words


def continues_with(store: Store, job: Snapshot) -> Stage:
    """The stage that a paused job continues with: its sandbox was given back, and INIT makes another one."""
    in_sandbox = job.stage is Stage.RUN and store.keys.lane(job.stream).node is not None
    return Stage.INIT if in_sandbox else job.stage


async def _pause(store: Store, refs: Sequence[JobRef], order: PauseOrder) -> list[str]:
    words, left = list[str](), list(refs)
    for _ in range(TRIES):
        looked = [job for job in await jobs.read(store, left) if job]
        left = []
        for chunk in batched(looked):
            wanted = [Pause(job.ref, job.stream) for job in chunk]
            said = await store.pause(wanted, for_ms=order.for_ms, ends=PauseEnd(order.then))
            words += [word for word in said if word != "moved"]
            left += [job.ref for job, word in zip(chunk, said, strict=True) if word == "moved"]
        if not left:
            break
    return words


async def _expect(store: Store, run: RunRef) -> None:
    if not await runs.exists(store, run):
        raise NotFound(f"there is no run {public(run)!r}")


async def _jobs(store: Store, run: RunRef) -> AsyncIterator[list[JobRef]]:
    """The jobs of a run's open groups, in slices."""
    async for refs in groups.pages(store, run):
        for made in (await groups.jobs(store, refs)).values():
            yield made


async def _refuse(store: Store, ref: JobRef, word: str) -> NoReturn:
    """Raises what tells a caller why a job cannot be paused or resumed."""
    parts, name = asked_job(ref), public(ref)
    [group] = await groups.read(store, [parts.group_ref])
    if group is None or (not group.cursor and parts.sample >= group.n + group.refills):
        raise NotFound(f"there is no job {name!r}, or its result was acknowledged")
    if word == State.STOPPING:
        raise Conflict(f"{name!r} was told to end, and its worker is stopping it")
    if word == "gone" and not group.cursor:
        raise Conflict(f"{name!r} still waits in the backlog: pause its run {public(parts.run_ref)!r}")
    raise Conflict(f"{name!r} has ended")
