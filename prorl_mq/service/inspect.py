"""Looking at jobs and batches: where they are, why they wait, and what they did."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from prorl_mq.errors import NotFound
from prorl_mq.rules.dapo import rate
from prorl_mq.schema.codec import decode, unpack_trajectory
from prorl_mq.schema.dapo import Phase
from prorl_mq.schema.ids import BatchRef, JobParts, JobRef, RunRef, asked_job, public
from prorl_mq.schema.items import StoredGroup
from prorl_mq.schema.lifecycle import State
from prorl_mq.schema.messages import (
    BatchStatus,
    DapoStatus,
    Event,
    GroupRecord,
    JobStatus,
    Outcome,
    SampleRecord,
    Stage,
    events,
)
from prorl_mq.schema.status import PauseEnd
from prorl_mq.schema.timeline import WAITS, Timeline, timeline
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.schema.turns import LoggedTurns, RecordUnreadable
from prorl_mq.service import turn_pages
from prorl_mq.service.turn_pages import NONE, PAGE_BYTES, Page
from prorl_mq.store import batches, families, groups, jobs, results, runs, streams
from prorl_mq.store.batches import BatchCounts
from prorl_mq.store.breakers import NEXT_TRY
from prorl_mq.store.jobs import Snapshot
from prorl_mq.store.payloads import reading as payloads
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living, slots

UNLOGGED: Final = (
    "it has logged no turn: its first one is under way, or it has no log (a rollout of one turn, a task family that "
    "cannot continue, Redis too full) and its turns are shown when RUN has ended"
)


class DatedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch and when it came."""

    submitted_ms: int
    batch: BatchStatus


async def job_status(store: Store, ref: JobRef) -> JobStatus:
    """Raises `NotFound`."""
    parts = asked_job(ref)
    group = await _group(store, parts, ref)
    [job] = await jobs.read(store, [ref])
    if job is not None and job.state != State.DONE:
        why = await _why(store, job)
        return _status(parts, ref, group, job.state, job, why)
    record = await _record(store, parts, group)
    if record is not None:
        sample = _sample(record, ref)
        why = f"ended as {sample.outcome}; its group was {record.verdict}"
        status = _status(parts, ref, group, State.DONE, job, why, sample.outcome, record.batch_id)
        return _explained(msgspec.structs.replace(status, task_id=record.task_id), sample)
    if job is not None:
        why = f"ended as {job.outcome}; its group closes when its last sample has ended"
        status = _status(parts, ref, group, State.DONE, job, why, Outcome(job.outcome))
        packed = group.samples.get(parts.sample)
        return _explained(status, decode(packed, SampleRecord)) if packed else status
    return _status(parts, ref, group, "backlog", None, await _why_backlog(store, parts, group))


async def job_events(store: Store, ref: JobRef) -> list[Event]:
    """The newest 64 state changes, oldest first. Raises `NotFound`."""
    parts = asked_job(ref)
    group = await _group(store, parts, ref)
    record = await _record(store, parts, group)
    if record is not None:
        return events(public(ref), record.timelines.get(public(ref), ""))
    return events(public(ref), group.timelines.get(parts.sample) or await jobs.timeline(store, ref))


async def job_timeline(store: Store, ref: JobRef) -> Timeline:
    """All that is known of what a job did, and why it waits. Raises `NotFound`."""
    status = await job_status(store, ref)
    return timeline(status, await job_events(store, ref), await store.now_ms())


async def job_trajectory(store: Store, ref: JobRef) -> Trajectory:
    """Raises `NotFound`, also while the job has none, and `PayloadUnavailable`."""
    parts = asked_job(ref)
    group = await _group(store, parts, ref)
    record = await _record(store, parts, group)
    if record is not None:
        key = _sample(record, ref).trajectory
    else:
        [job] = await jobs.read(store, [ref])
        key = job.trajectory if job else None
    data = await payloads.get(store, ref, key) if key else None
    if data is None:
        raise NotFound(
            f"job {public(ref)!r} has no trajectory (yet): it is written when RUN ends; its log has turns before"
        )
    return await unpack_trajectory(data)


async def job_log(store: Store, ref: JobRef, *, after: int, limit: int) -> LoggedTurns:
    """The finished turns of a job from number `after` on: those of its log, without touching its worker, and once RUN
    has ended those of its trajectory. Raises `NotFound`.
    """
    parts = asked_job(ref)
    while True:
        group = await _group(store, parts, ref)
        record = await _record(store, parts, group)
        [job] = [None] if record is not None else await jobs.read(store, [ref])
        if record is not None:
            key, over = _sample(record, ref).trajectory, True
        elif job is not None:
            key, over = job.trajectory, job.state == State.DONE or job.stage is Stage.EVAL
        else:
            return turns_of(ref, NONE, after, note="it waits for its admission")
        if not over:
            base = await store.inherited(parts.group_ref)
            shared = base.records if base is not None else ()
            try:
                part = await jobs.log_part(store, ref, after, 2 * limit + 2, most_bytes=PAGE_BYTES, inherited=shared)
                if part is None:
                    continue
                page = await asyncio.to_thread(turn_pages.logged, *part, after=after, limit=limit)
            except RecordUnreadable as error:
                return turns_of(ref, NONE, after, note=f"{error}; its turns are shown when RUN has ended")
            why = UNLOGGED if job is None or job.stage is Stage.RUN else "its rollout has not begun: it is in init"
            return turns_of(ref, page, after, note="" if part.first or part.records else why)
        data = await payloads.get(store, ref, key) if key else None
        if data is None:
            return turns_of(ref, NONE, after, note="it ended without a trajectory", complete=True)
        trajectory = await unpack_trajectory(data)
        page = await asyncio.to_thread(turn_pages.ended, trajectory, after=after, limit=limit)
        note = "" if trajectory.turns else "its trajectory has no turns"
        return turns_of(ref, page, after, note=note, complete=not page.more)


def turns_of(ref: JobRef, page: Page, after: int, *, note: str, complete: bool = False) -> LoggedTurns:
    """A page of turns as an answer."""
    return LoggedTurns(
        job_id=public(ref),
        rollout=page.rollout,
        turns=page.turns,
        under_way=page.under_way,
        next=after + len(page.turns),
        complete=complete,
        note=note,
    )


async def batch_status(store: Store, ref: BatchRef) -> BatchStatus:
    """Raises `NotFound`."""
    now = await batches.counts(store, ref)
    if now is None:
        raise NotFound(
            f"there is no batch {public(ref)!r}, or nothing of it changed for 7 days: read its run's results"
        )
    _, run, batch = ref.split(":")
    total = now.groups + now.joined
    left, dapo = total - now.closed, await _dapo_status(store, ref, now)
    if dapo is not None:
        left = 0 if dapo.phase == Phase.CLOSED else max(1, left)
    return BatchStatus(run_id=run, batch_id=batch, groups=total, open=left, verdicts=now.verdicts, dapo=dapo)


async def newest_batches(store: Store, run: RunRef, *, limit: int) -> Sequence[DatedBatch]:
    """The newest first; those that are forgotten are left out. Raises `NotFound` for an unknown run."""
    await expect_run(store, run)
    found = []
    for ref, came_ms in await batches.newest(store, run, limit=limit):
        try:
            batch = await batch_status(store, ref)
        except NotFound:
            continue
        found.append(DatedBatch(submitted_ms=came_ms, batch=batch))
    return found


async def _dapo_status(store: Store, ref: BatchRef, now: BatchCounts) -> DapoStatus | None:
    if now.plan is None:
        return None
    in_play, waiting = await batches.waiting(store, ref)
    return DapoStatus(
        phase=Phase(now.phase),
        target_groups=now.plan.dapo.target_groups,
        accepted=now.accepted,
        drawn=now.drawn,
        in_play=in_play,
        waiting=waiting,
        rate=rate(now.accepted, now.accepted + now.filtered),
        report=now.report,
        report_cursor=now.report_cursor,
    )


async def expect_run(store: Store, run: RunRef) -> None:
    """Raises `NotFound` if there is no such run."""
    await runs.expect(store, run)


async def _group(store: Store, parts: JobParts, ref: JobRef) -> StoredGroup:
    [group] = await groups.read(store, [parts.group_ref])
    if group is None:
        raise NotFound(f"there is no job {public(ref)!r}, or its result was acknowledged")
    samples = max(group.jobs, group.n)
    if not group.cursor and parts.sample >= samples:
        raise NotFound(f"group {public(parts.group_ref)!r} has no sample {parts.sample}; it has {samples}")
    return group


async def _record(store: Store, parts: JobParts, group: StoredGroup) -> GroupRecord | None:
    if not group.cursor:
        return None
    record = await results.record(store, parts.run_ref, group.cursor)
    if record is None:
        raise NotFound(f"the result of group {public(parts.group_ref)!r} was acknowledged")
    return record


def _sample(record: GroupRecord, ref: JobRef) -> SampleRecord:
    for sample in record.samples:
        if sample.job_id == public(ref):
            return sample
    raise NotFound(f"the group of {public(ref)!r} closed without that sample")


def _status(
    parts: JobParts,
    ref: JobRef,
    group: StoredGroup,
    state: str,
    job: Snapshot | None,
    why: str,
    outcome: Outcome | None = None,
    batch: str | None = None,
) -> JobStatus:
    return JobStatus(
        job_id=public(ref),
        group_id=parts.group,
        batch_id=batch or group.batch.rpartition(":")[2],
        run_id=parts.run,
        state=state,
        stage=job.stage if job else None,
        attempt=job.attempts + job.deaths if job else 0,
        owner=(job.owner or None) if job else None,
        outcome=outcome,
        why=why,
        task_id=group.spec.task_id if group.spec else "",
    )


def _explained(status: JobStatus, sample: SampleRecord) -> JobStatus:
    return msgspec.structs.replace(status, note=sample.note, evidence=sample.evidence, error=sample.error)


async def _why(store: Store, job: Snapshot) -> str:
    now = await store.now_ms()
    match job.state:
        case State.LEASED:
            left = (job.until_ms - now) / 1000
            since = (now - job.claimed_ms) / 1000
            waits = next((each.waits for each in await living(store) if each.name == job.owner and each.waits), "")
            text = f"{job.owner} has been working on it in {job.stage} for {since:.1f} s; {left:.0f} s are left"
            text += "; it is about to be paused" if job.pause_ms > now and job.stage != Stage.EVAL else ""
            return f"{text}; the worker waits: {waits}" if waits else text
        case State.PAUSED:
            left_s, then = (job.pause_ms - now) / 1000, "is resumed" if job.ends == PauseEnd.RESUME else "expires"
            return f"paused in {job.stage}; in {left_s:.0f} s it {then}, unless `prorl-mq resume` comes before"
        case State.STOPPING:
            return f"{job.ending}: {job.owner} is stopping it"
        case State.DELAYED:
            wait_ms = max(0, await jobs.delayed_until(store, job.ref) - now)
            if told := await _put_aside(store, job.ref):
                return f"{told}; next try in {wait_ms / 1000:.0f} s"
            return f"attempt {job.attempts} failed; {job.stage} is tried again in {wait_ms / 1000:.1f} s"
        case _:
            return await _why_queued(store, job)


async def _put_aside(store: Store, ref: JobRef) -> str:
    """Why a delayed job waits though no attempt of it was counted; empty: its attempt failed."""
    newest = events(public(ref), await jobs.timeline(store, ref))[-1:]
    told = newest[0].detail if newest else ""
    return told.partition(NEXT_TRY)[0] if told.startswith(WAITS) else ""


async def _why_queued(store: Store, job: Snapshot) -> str:
    lane, able = store.keys.lane(job.stream), await families.abilities(store)
    node = lane.node
    where = f" on node {node}" if node else ""
    if not slots(able.workers, job.stage, node):
        return f"no {job.stage} worker is alive{where}: start prorl-worker --stage {job.stage}"
    ahead = await streams.length(store, job.stream)
    here = f"waits for one of {able.slots(lane)} {job.stage} slots{where}; {ahead} jobs are on its stream"
    return able.why_waits(lane) or here


async def _why_backlog(store: Store, parts: JobParts, group: StoredGroup) -> str:
    if group.order == 0:
        return "its group waits in a reservoir, for a DAPO batch to draw it"
    ahead = await runs.ahead_of(store, group.ref)
    if not slots(await living(store), Stage.INIT):
        return "no init worker is alive: start prorl-worker --stage init"
    [run] = await runs.look(store, [parts.run_ref])
    return f"its group waits in the backlog of run {parts.run} behind {ahead} others; the run {run.why}"
