"""Cancelling a job, a group, a batch or a run: waiting work ends now, running work is asked to stop."""

from collections.abc import AsyncIterator, Mapping, Sequence

from prorl_mq.errors import Conflict, NotFound
from prorl_mq.rules.groups import Withdrawal
from prorl_mq.schema.ids import BatchRef, GroupRef, JobRef, RunRef, asked_job, job_ref, public, run_of
from prorl_mq.schema.items import Stop
from prorl_mq.schema.lifecycle import State, Verb
from prorl_mq.schema.messages import Outcome
from prorl_mq.schema.status import CancelAnswer
from prorl_mq.store import batches, groups, jobs, runs
from prorl_mq.store.store import Store, batched

SLICE = 256  # jobs in one sweep, so that no cancel holds Redis up
TRIES = 5  # a job may move between the look and the verb


async def cancel(store: Store, kind: str, ref: str) -> CancelAnswer:
    """Idempotent. Raises `NotFound` or `Conflict`. `kind` is job, group, batch or run; `ref` includes the tenant."""
    if kind == "job":
        return await _cancel_job(store, JobRef(ref))
    await _halt(store, kind, ref)
    stopping, known = 0, False
    async for found in _groups(store, kind, ref):
        known = True
        stopping += await cancel_groups(store, found, Withdrawal.CANCEL)
    if not known and not await _exists(store, kind, ref):
        raise NotFound(f"there is no {kind} {public(ref)!r}")
    return CancelAnswer(id=public(ref), state="cancelling" if stopping else "cancelled", jobs=stopping)


async def _cancel_job(store: Store, ref: JobRef) -> CancelAnswer:
    [job] = await jobs.read(store, [ref])
    if job is None:
        await _must_have_ended(store, ref)
    stopping = await _stop(store, [ref])
    return CancelAnswer(id=public(ref), state="cancelling" if stopping else "cancelled", jobs=stopping)


async def _must_have_ended(store: Store, ref: JobRef) -> None:
    """Raises `NotFound` for a job that never was, and `Conflict` for a sample that is not admitted yet."""
    parts = asked_job(ref)
    [group] = await groups.read(store, [parts.group_ref])
    if group is None:
        raise NotFound(f"there is no job {public(ref)!r}, or its result was acknowledged")
    if group.cursor or parts.sample < group.jobs:
        return
    if parts.sample >= group.n:
        raise NotFound(f"group {public(parts.group_ref)!r} has no sample {parts.sample}; it has {group.n}")
    raise Conflict(f"{public(ref)!r} still waits in the backlog: cancel its group {public(parts.group_ref)!r}")


async def cancel_groups(store: Store, found: Mapping[GroupRef, BatchRef], why: Withdrawal) -> int:
    """Ends groups of one run, each given with its batch; how many jobs a worker must stop first. Idempotent."""
    if not found:
        return 0
    run, counts = run_of(next(iter(found))), list[int]()
    for chunk in batched(found.items()):
        counts += await store.withdraw(run, dict(chunk), why)
    refs = [job_ref(group, i) for group, count in zip(found, counts, strict=True) for i in range(max(0, count))]
    return sum([await _stop(store, chunk) for chunk in batched(refs, SLICE)])


async def _stop(store: Store, refs: Sequence[JobRef]) -> int:
    """Stops jobs wherever they are; how many a worker must stop first."""
    stopping, left = 0, list(refs)
    for turn in range(TRIES):
        looked = [job for job in await jobs.read(store, left) if job]
        if turn == 0:
            stopping = sum(job.state == State.STOPPING for job in looked)  # told by an earlier cancel
        left = []
        for chunk in batched(looked):
            items = [Stop(job.ref, jobs.ended(job, Outcome.CANCELLED), job.stream) for job in chunk]
            answers = await store.stop(Verb.CANCEL, items)
            stopping += answers.count("stopping")
            left += [job.ref for job, answer in zip(chunk, answers, strict=True) if answer == "moved"]
        if not left:
            break
    return stopping


async def _halt(store: Store, kind: str, ref: str) -> None:
    """Ends the draws from the reservoirs of a cancelled batch or run."""
    if kind not in {"batch", "run"}:
        return
    if kind == "batch":
        await store.halt(BatchRef(ref), "cancelled")
        return
    for batch in await batches.not_closed(store):
        if run_of(batch) == ref:
            await store.halt(batch, "cancelled")


async def _groups(store: Store, kind: str, ref: str) -> AsyncIterator[dict[GroupRef, BatchRef]]:
    """The open groups of a group, batch or run, each with its batch, in slices."""
    if kind == "group":
        found = await groups.batches_of(store, [GroupRef(ref)])
        if found or await groups.exists(store, GroupRef(ref)):
            yield found
        return
    async for refs in groups.pages(store, RunRef(ref) if kind == "run" else BatchRef(ref)):
        if found := await groups.batches_of(store, refs):
            yield found


async def _exists(store: Store, kind: str, ref: str) -> bool:
    if kind == "batch":
        return await batches.exists(store, BatchRef(ref))
    return kind == "run" and await runs.exists(store, RunRef(ref))
