"""A job's status and time line as text."""

from datetime import UTC, datetime

import msgspec

from prorl_mq.process.tables import table
from prorl_mq.schema.messages import JobStatus
from prorl_mq.schema.timeline import Timeline


def status(job: JobStatus) -> str:
    """One line: where it is, and why; then what an ended one rests on: note, evidence, error and traceback."""
    ended = f" as {job.outcome}" if job.outcome else ""
    where = f" in {job.stage}" if job.stage and not job.outcome else ""
    lines = [f"{job.job_id}: {job.state}{where}{ended}; {job.why}"]
    if job.note:
        lines.append(f"note: {job.note}")
    if job.evidence:
        lines.append(f"evidence: {msgspec.json.encode(job.evidence).decode()}")
    if job.error is not None:
        lines.append(f"error in {job.error.stage}, cause {job.error.cause}: {job.error.type}: {job.error.message}")
        lines += (job.error.traceback or "").splitlines()
    return "\n".join(lines)


def timeline(found: Timeline) -> str:
    """The status, every state change, and each attempt of a stage."""
    begin_ms = found.submitted_ms or (found.changes[0].ms if found.changes else found.now_ms)
    begin = datetime.fromtimestamp(begin_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    changes = [
        (f"{(each.ms - begin_ms) / 1000:.3f}", each.event, each.stage, each.state.value,
         "" if each.seconds is None else f"{each.seconds:.3f}", each.worker, each.detail)
        for each in found.changes
    ]  # fmt: skip
    attempts = [
        (each.stage, each.number, each.waited_s, each.held_s, each.ended_by or "under way", each.worker,
         each.sandbox or "-", ", ".join(each.backends) or "-")
        for each in found.attempts
    ]  # fmt: skip
    parts = [status(found.status), f"submitted {begin}" if found.submitted_ms else f"its time line begins {begin}"]
    if found.cut:
        parts.append("only the newest 64 events are kept")
    parts.append(table(("after s", "event", "stage", "then", "for s", "worker", "detail"), changes))
    head = ("stage", "attempt", "waited s", "held s", "ended by", "worker", "sandbox", "backends")
    return "\n\n".join([*parts, table(head, attempts)] if attempts else parts)
