"""Looking at jobs and batches: where they are, why they wait, and what they did."""

from collections.abc import Mapping

from prorl_mq.errors import NotFound
from prorl_mq.rules.dapo import Phase, rate
from prorl_mq.rules.dapo_report import FILTERED, BatchReport
from prorl_mq.schema.codec import decode, unpack_trajectory
from prorl_mq.schema.ids import BatchRef, JobParts, JobRef, RunRef, job_parts, public
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
from prorl_mq.schema.timeline import Timeline, timeline
from prorl_mq.schema.trajectory import Trajectory
from prorl_mq.store import jobs as snapshots
from prorl_mq.store import runs
from prorl_mq.store.batches import Plan
from prorl_mq.store.jobs import Snapshot
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living, slots


async def job_status(store: Store, ref: JobRef) -> JobStatus:
    """Raises `NotFound`."""
    parts = _parts(ref)
    group = await _group(store, parts, ref)
    [job] = await snapshots.jobs(store, [ref])
    if job is not None and job.state != State.DONE:
        why = await _why(store, job)
        return _status(parts, ref, group, job.state, job, why)
    record = await _record(store, parts, group)
    if record is not None:
        sample = _sample(record, ref)
        why = f"ended as {sample.outcome}; its group was {record.verdict}"
        return _status(parts, ref, group, State.DONE, job, why, sample.outcome, record.batch_id)
    if job is not None:
        why = f"ended as {job.outcome}; its group closes when its last sample has ended"
        return _status(parts, ref, group, State.DONE, job, why, Outcome(job.outcome))
    return _status(parts, ref, group, "backlog", None, await _why_backlog(store, parts))


async def job_events(store: Store, ref: JobRef) -> list[Event]:
    """The newest 64 state changes, oldest first. Raises `NotFound`."""
    parts = _parts(ref)
    group = await _group(store, parts, ref)
    record = await _record(store, parts, group)
    if record is not None:
        return events(public(ref), record.timelines.get(public(ref), ""))
    line = group.get(f"t:{parts.sample}") or await store.read("HGET", store.keys.job(ref), "line")
    return events(public(ref), (line or b"").decode())


async def job_timeline(store: Store, ref: JobRef) -> Timeline:
    """All that is known of what a job did, and why it waits. Raises `NotFound`."""
    status = await job_status(store, ref)
    return timeline(status, await job_events(store, ref), await store.now_ms())


async def job_trajectory(store: Store, ref: JobRef) -> Trajectory:
    """Raises `NotFound`, also while the job has none."""
    parts = _parts(ref)
    group = await _group(store, parts, ref)
    record = await _record(store, parts, group)
    if record is not None:
        key = _sample(record, ref).trajectory
    else:
        [job] = await snapshots.jobs(store, [ref])
        key = job.trajectory if job else None
    data = await store.read("GET", key) if key else None
    if data is None:
        raise NotFound(f"job {public(ref)!r} has no trajectory (yet): it is written when RUN ends")
    return await unpack_trajectory(data)


async def batch_status(store: Store, ref: BatchRef) -> BatchStatus:
    """Raises `NotFound`."""
    row = await store.read("HGETALL", store.keys.batch(ref))
    fields = {k.decode(): v for k, v in zip(row[::2], row[1::2], strict=True)}
    if "groups" not in fields:
        raise NotFound(f"there is no batch {public(ref)!r}")
    _, run, batch = ref.split(":")
    verdicts = {name.removeprefix("v:"): int(value) for name, value in fields.items() if name.startswith("v:")}
    total = int(fields["groups"]) + int(fields.get("joined", 0))
    left, dapo = total - int(fields["closed"]), await _dapo_status(store, ref, fields)
    if dapo is not None:
        left = 0 if dapo.phase == Phase.CLOSED else max(1, left)
    return BatchStatus(run_id=run, batch_id=batch, groups=total, open=left, verdicts=verdicts, dapo=dapo)


async def _dapo_status(store: Store, ref: BatchRef, fields: Mapping[str, bytes]) -> DapoStatus | None:
    if "plan" not in fields:
        return None
    keys, plan = store.keys, decode(fields["plan"], Plan)
    in_play, waiting = await store.read_many([("ZCARD", keys.drawn(ref)), ("ZCARD", keys.reservoir(ref))])
    accepted = int(fields.get("n:accepted", 0))
    judged = accepted + sum(int(fields.get(f"n:{kind}", 0)) for kind in FILTERED)
    return DapoStatus(
        phase=Phase(fields["phase"].decode()),
        target_groups=plan.dapo.target_groups,
        accepted=accepted,
        drawn=int(fields.get("drawn", 0)),
        in_play=int(in_play),
        waiting=int(waiting),
        rate=rate(accepted, judged),
        report=decode(fields["report"], BatchReport) if "report" in fields else None,
        report_cursor=fields["cursor"].decode() if "cursor" in fields else None,
    )


async def run_exists(store: Store, run: RunRef) -> bool:
    """Whether the run has ever had a batch that is not forgotten yet."""
    return bool(await store.read("EXISTS", store.keys.run(run)))


def _parts(ref: JobRef) -> JobParts:
    try:
        return job_parts(ref)
    except ValueError:
        raise NotFound(f"{public(ref)!r} is no job id; one reads run:group:index") from None


async def _group(store: Store, parts: JobParts, ref: JobRef) -> dict[str, bytes]:
    row = await store.read("HGETALL", store.keys.group(parts.group_ref))
    fields = {k.decode(): v for k, v in zip(row[::2], row[1::2], strict=True)}
    if not fields:
        raise NotFound(f"there is no job {public(ref)!r}, or its result was acknowledged")
    jobs = max(int(fields.get("next", 0)), int(fields.get("n", 0)))
    if "cursor" not in fields and parts.sample >= jobs:
        raise NotFound(f"group {public(parts.group_ref)!r} has no sample {parts.sample}; it has {jobs}")
    return fields


async def _record(store: Store, parts: JobParts, group: dict[str, bytes]) -> GroupRecord | None:
    if "cursor" not in group:
        return None
    rows = await store.read("XRANGE", store.keys.results(parts.run_ref), group["cursor"], group["cursor"])
    if not rows:
        raise NotFound(f"the result of group {public(parts.group_ref)!r} was acknowledged")
    return decode(rows[0][1][1], GroupRecord)


def _sample(record: GroupRecord, ref: JobRef) -> SampleRecord:
    for sample in record.samples:
        if sample.job_id == public(ref):
            return sample
    raise NotFound(f"the group of {public(ref)!r} closed without that sample")


def _status(
    parts: JobParts,
    ref: JobRef,
    group: dict[str, bytes],
    state: str,
    job: Snapshot | None,
    why: str,
    outcome: Outcome | None = None,
    batch: str | None = None,
) -> JobStatus:
    return JobStatus(
        job_id=public(ref),
        group_id=parts.group,
        batch_id=batch or group.get("batch", b"").decode().rpartition(":")[2],
        run_id=parts.run,
        state=state,
        stage=job.stage if job else None,
        attempt=job.attempts + job.deaths if job else 0,
        owner=(job.owner or None) if job else None,
        outcome=outcome,
        why=why,
    )


async def _why(store: Store, job: Snapshot) -> str:
    now = await store.now_ms()
    match job.state:
        case State.LEASED:
            left = (job.until_ms - now) / 1000
            since = (now - job.claimed_ms) / 1000
            return f"{job.owner} has been working on it in {job.stage} for {since:.1f} s; {left:.0f} s are left"
        case State.STOPPING:
            return f"{job.ending}: {job.owner} is stopping it"
        case State.DELAYED:
            due = await store.read("ZSCORE", store.keys.delayed, job.ref)
            wait = (float(due) - now) / 1000 if due else 0.0
            return f"attempt {job.attempts} failed; {job.stage} is tried again in {max(0.0, wait):.1f} s"
        case _:
            return await _why_queued(store, job)


async def _why_queued(store: Store, job: Snapshot) -> str:
    node = job.stream.partition("@")[2] or None
    alive = slots(await living(store), job.stage, node)
    where = f" on node {node}" if node else ""
    if not alive:
        return f"no {job.stage} worker is alive{where}: start prorl-worker --stage {job.stage}"
    ahead = await store.read("XLEN", job.stream)
    return f"waits for one of {alive} {job.stage} slots{where}; {ahead} jobs are on its stream"


async def _why_backlog(store: Store, parts: JobParts) -> str:
    group, keys = parts.group_ref, store.keys
    if await store.read("HGET", keys.group(group), "order") == b"0":
        return "its group waits in a reservoir, for a DAPO batch to draw it"
    rank = await store.read("ZRANK", keys.backlog(parts.run_ref), group)
    if not slots(await living(store), Stage.INIT):
        return "no init worker is alive: start prorl-worker --stage init"
    [run] = await runs.look(store, [parts.run_ref])
    return f"its group waits in the backlog of run {parts.run} behind {rank or 0} others; the run {run.why}"
