"""Invariants of what is published, and of the counts that are kept of it and of jobs in flight."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Final

from prorl_mq.schema.dapo import Phase
from prorl_mq.schema.ids import EPOCH_MS, RunRef
from prorl_mq.schema.lifecycle import COUNTS
from prorl_mq.schema.messages import GroupRecord, SampleRecord, Verdict
from prorl_mq.service.fsck.violations import Violation, correct, remove
from prorl_mq.store.audit.archive import ArchiveFacts
from prorl_mq.store.audit.moment import Moment, by_run
from prorl_mq.store.audit.results import OwnerFacts, RecordFacts, ReportFacts, RunCounts
from prorl_mq.store.layout.keys import Keys


def published(facts: RecordFacts) -> Iterator[Violation]:
    """Violations of one record."""
    where = f"the record of {facts.record.group_id} at {facts.cursor}"
    if facts.group_cursor != facts.cursor:
        theirs = f"has its record at {facts.group_cursor}" if facts.group_cursor else "is gone"
        fix = _left_over(facts.key, facts.cursor, surplus=facts.surplus)
        yield Violation(14, facts.key, f"{where} is not its group's, which {theirs}", fix)
    for fault in _record_faults(facts.record):
        yield Violation(14, facts.key, f"{where} {fault}", _REPORT)
    for sample in facts.record.samples:
        for fault in sample_faults(sample):
            yield Violation(16, facts.key, f"{where}: sample {sample.index} {fault}", _REPORT)
    for blob in facts.blobs:
        if not blob.bytes:
            yield Violation(15, facts.key, f"{where} names the trajectory {blob.key}, which is gone", _REPORT)
        elif blob.ttl_ms >= 0:
            yield Violation(15, blob.key, f"{where} names it, and it goes by its TTL", f"PERSIST {blob.key}")


def _record_faults(record: GroupRecord) -> Iterator[str]:
    listed = [sample.index for sample in record.samples]
    if listed != list(range(len(listed))):
        yield f"lists the samples {listed}"
    counting = sum(sample.outcome in COUNTS for sample in record.samples)
    if record.verdict is Verdict.ACCEPTED and record.bias is None and counting < record.n:
        yield f"is accepted with {counting} of {record.n} samples that count"


def sample_faults(sample: SampleRecord) -> Iterator[str]:
    """A reward that is none, or that EVAL cannot have given."""
    if sample.reward is None:
        return
    if not math.isfinite(sample.reward):
        yield f"has the reward {sample.reward}"
    if sample.outcome not in COUNTS:
        yield f"ended {sample.outcome} and has the reward {sample.reward}"


def reported(facts: ReportFacts) -> Iterator[Violation]:
    """A report that is not its batch's."""
    if facts.phase and (facts.phase != Phase.CLOSED or facts.batch_cursor != facts.cursor):
        what = f"the report of {facts.ref} at {facts.cursor} is not its batch's: {facts.phase} {facts.batch_cursor}"
        yield Violation(20, facts.key, what, _left_over(facts.key, facts.cursor, surplus=facts.surplus))


def _left_over(key: str, cursor: str, *, surplus: bool) -> str:
    """Advice on an entry that its owner does not name: only a copy of what is there twice may be deleted unread."""
    if surplus:
        return f"it is there twice: delete this copy, XDEL {key} {cursor}"
    keep = f"XRANGE {key} {cursor} {cursor}"
    return f"it is the only copy: read and acknowledge it as the trainer does, or keep a copy first ({keep})"


def newest(key: str, entry: str, epoch: int) -> Iterator[Violation]:
    """Entries of an epoch that is not open yet: a reader's cursor would pass what comes next."""
    if entry and int(entry.partition("-")[0]) // EPOCH_MS > epoch:
        yield Violation(7, key, f"its newest entry {entry} is of a later epoch than {epoch}", "restore the epoch's key")


def kept(facts: OwnerFacts, archiving: frozenset[str]) -> Iterator[Violation]:
    """A blob without a TTL that neither its job nor a record names, nor a group that waits for the archive."""
    if facts.key not in {facts.job_trajectory, facts.sample_trajectory} | archiving:
        yield Violation(26, facts.key, "no job and no record names it, and it has no TTL", remove(facts.key))


def archiving(facts: ArchiveFacts, keys: Keys) -> Iterator[Violation]:
    """Counts of what waits for the archive, where nothing changed while it was read."""
    if facts.before != facts.after:
        return
    for name, counted, there in (
        ("groups", facts.after.groups, facts.groups),
        ("bytes", facts.after.bytes, facts.bytes),
    ):
        if counted != there:
            what = f"{counted} {name} are counted as waiting for the archive, and there are {there}"
            yield Violation(64, keys.archive_state, what, correct(f"HSET {keys.archive_state} {name} {there}"))


def counts(
    run: RunRef, keys: Keys, before: RunCounts, after: RunCounts, *, groups: int, size: int
) -> Iterator[Violation]:
    """Counts of a run's results, where nothing changed while they were read."""
    if before != after:
        return
    if groups != after.unacked:
        what = f"{after.unacked} groups are counted as not acknowledged, and there are {groups}"
        yield Violation(23, keys.unacked, f"{run}: {what}", correct(f"HSET {keys.unacked} {run} {groups}"))
    if after.bytes is not None and size != after.bytes:
        what = f"its results are counted as {after.bytes} bytes, and are {size}"
        yield Violation(23, keys.run(run), what, correct(f"HSET {keys.run(run)} bytes {size}"))


def flying(moment: Moment, keys: Keys) -> Iterator[Violation]:
    """Counts of jobs in flight, of one moment."""
    jobs = by_run(moment.jobs)
    for run in sorted(jobs.keys() | moment.in_flight.keys()):
        counted, there = moment.in_flight.get(run, 0), jobs.get(run, 0)
        if counted != there:
            what = f"{run}: {counted} jobs are counted as in flight, and there are {there}"
            yield Violation(23, keys.in_flight, what, correct(f"HSET {keys.in_flight} {run} {there}"))
    held = Counter((job.pool, job.backend) for job in moment.jobs if job.backend)
    for pool, address in sorted(held.keys() | moment.backends.keys()):
        counted, there = moment.backends.get((pool, address), 0), held[pool, address]
        if counted != there:
            key = keys.pool(pool)
            what = f"{address}: {counted} jobs are counted on it, and {there} hold it"
            yield Violation(24, key, what, correct(f"ZADD {key} {there} {address}"))
    waiting = sum(job.bytes for job in moment.jobs)
    if waiting != moment.eval_bytes:
        what = f"{moment.eval_bytes} bytes are counted as waiting for EVAL, and there are {waiting}"
        yield Violation(25, keys.eval_bytes, what, correct(f"SET {keys.eval_bytes} {waiting}"))


_REPORT: Final = "report it with `prorl-mq fsck --json` and the service's logs"
