"""Results and blobs as an audit sees them: each record with the group and the trajectories that it names."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import (
    EPOCH_MS,
    BatchRef,
    GroupRef,
    JobRef,
    RunRef,
    batch_ref,
    group_of,
    group_ref,
    job_parts,
    run_of,
)
from prorl_mq.schema.intake import REPORT_FIELD, RESULT_FIELD
from prorl_mq.schema.messages import GroupRecord, SampleRecord
from prorl_mq.schema.status import BatchReport
from prorl_mq.store.audit.reads import Key, Reads, entries, texts
from prorl_mq.store.payloads.name import PayloadFile, named_file
from prorl_mq.store.results import owned_bytes

AT_ONCE: Final = 32  # records, which are large


class BlobFacts(NamedTuple):
    """A trajectory that a record names. `bytes` 0: there is none; `ttl_ms` -1: it stays."""

    key: str
    bytes: int
    ttl_ms: int


class RecordFacts(NamedTuple):
    """One published group. `group_cursor` is the group's own place for it; empty: the group is gone.

    `surplus`: the group's record is at that other place, so that this one is there twice.
    """

    run: RunRef
    key: str
    cursor: str
    record: GroupRecord
    bytes: int  # that it holds, with its trajectories
    group_cursor: str
    surplus: bool
    blobs: Sequence[BlobFacts]
    files: Sequence[PayloadFile]  # trajectories that lie in files


class ReportFacts(NamedTuple):
    """One published report, with the phase and the report's place as its batch has them; empty: the batch is gone.

    `surplus`: the batch's report is at that other place, so that this one is there twice.
    """

    key: str
    cursor: str
    ref: BatchRef
    bytes: int
    phase: str
    batch_cursor: str
    surplus: bool


class RunCounts(NamedTuple):
    """Counts of a run beside its results, read before and after them."""

    length: int
    newest: str
    unacked: int
    bytes: int | None  # None: the run's own counts have gone with their time


class OwnerFacts(NamedTuple):
    """A blob that does not go by itself, with who names it: its job, or a record of its sample."""

    key: str
    job_trajectory: str
    sample_trajectory: str


async def of_run(reads: Reads, key: Key) -> AsyncIterator[tuple[list[RecordFacts], list[ReportFacts]]]:
    """Records and reports of a run, in pages; answers to messages are left out."""
    run = RunRef(key.rest)
    async for page in entries(reads, key.name, count=AT_ONCE):
        records = [(cursor, body) for cursor, (field, body) in page if field == RESULT_FIELD]
        reports = [(cursor, body) for cursor, (field, body) in page if field == REPORT_FIELD]
        yield (
            [await _record(reads, run, key.name, cursor, body) for cursor, body in records],
            [await _report(reads, run, key.name, cursor, body) for cursor, body in reports],
        )


async def epoch(reads: Reads, run: RunRef) -> int:
    """The number of the epoch that is open, or that of the cell that a run came from where it is higher: what is added
    to its results lies above what came with it.
    """
    number, came_to = await reads.read_many(
        [("HGET", reads.keys.epoch, "number"), ("HGET", reads.keys.run(run), "came_to")]
    )
    return max(int(number or 0), int((came_to or b"0").partition(b"-")[0]) // EPOCH_MS)


async def held(reads: Reads, run: RunRef) -> RunCounts:
    """The counts of a run at this moment."""
    keys = reads.keys
    length, newest, unacked, size = await reads.read_at_once([
        ("XLEN", keys.results(run)), ("XREVRANGE", keys.results(run), "+", "-", "COUNT", 1),
        ("HGET", keys.unacked, run), ("HGET", keys.run(run), "bytes"),
    ])  # fmt: skip
    return RunCounts(int(length), newest[0][0].decode() if newest else "", int(unacked or 0), size and int(size))


async def with_unacked(reads: Reads) -> set[str]:
    """Runs that have groups which are not acknowledged."""
    [names] = await reads.read_many([("HKEYS", reads.keys.unacked)])
    return {name.decode() for name in names}


async def owners(reads: Reads, keys: Sequence[Key]) -> list[OwnerFacts]:
    """Owners of some blobs."""
    refs = [JobRef(key.rest.rsplit(":", 2)[0]) for key in keys]
    layout = reads.keys
    rows = await reads.read_many(
        [
            command
            for ref in refs
            for command in (
                ("HMGET", layout.job(ref), "trajectory"),
                ("HMGET", layout.group(group_of(ref)), f"s:{job_parts(ref).sample}", "cursor"),
            )
        ]
    )
    published = await _published(reads, {
        group_of(ref): cursor.decode() for ref, (_, cursor) in zip(refs, rows[1::2], strict=True) if cursor
    })  # fmt: skip
    return [
        OwnerFacts(key.name, _text(job[0]), _named(ref, group[0], published.get(group_of(ref), {})))
        for key, ref, job, group in zip(keys, refs, rows[::2], rows[1::2], strict=True)
    ]


async def _published(reads: Reads, cursors: Mapping[GroupRef, str]) -> dict[GroupRef, dict[int, str]]:
    """The trajectories that the record of each closed group names, by sample."""
    rows = await reads.read_many(
        [("XRANGE", reads.keys.results(run_of(ref)), cursor, cursor) for ref, cursor in cursors.items()]
    )
    return {
        ref: {each.index: each.trajectory or "" for each in decode(row[0][1][1], GroupRecord).samples}
        for ref, row in zip(cursors, rows, strict=True)
        if row
    }


def _named(ref: JobRef, packed: bytes | None, published: Mapping[int, str]) -> str:
    if packed is not None:
        return decode(packed, SampleRecord).trajectory or ""
    return published.get(job_parts(ref).sample, "")


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


async def _record(reads: Reads, run: RunRef, key: str, cursor: str, body: bytes) -> RecordFacts:
    record = decode(body, GroupRecord)
    everywhere = [sample.trajectory for sample in record.samples if sample.trajectory]
    files = [file for name in everywhere if (file := named_file(name))]
    named = [name for name in everywhere if not named_file(name)]
    ref = group_ref(run, record.group_id)
    asked = [(word, blob) for blob in named for word in ("STRLEN", "PTTL")]
    [mine, *rows] = await reads.read_many([("HGET", reads.keys.group(ref), "cursor"), *asked])
    blobs = [BlobFacts(name, int(rows[2 * at]), int(rows[2 * at + 1])) for at, name in enumerate(named)]
    size = owned_bytes(record, len(body))
    surplus = await _elsewhere(reads, key, cursor, _text(mine))
    return RecordFacts(run, key, cursor, record, size, _text(mine), surplus, blobs, files)


async def _report(reads: Reads, run: RunRef, key: str, cursor: str, body: bytes) -> ReportFacts:
    ref = batch_ref(run, decode(body, BatchReport).batch_id)
    [row] = await reads.read_many([("HMGET", reads.keys.batch(ref), "phase", "cursor")])
    found = texts(("phase", "cursor"), row)
    theirs = found.get("cursor", "")
    surplus = await _elsewhere(reads, key, cursor, theirs)
    return ReportFacts(key, cursor, ref, len(body), found.get("phase", ""), theirs, surplus)


async def _elsewhere(reads: Reads, key: str, cursor: str, other: str) -> bool:
    """True if something lies at another place that the owner of an entry names."""
    if other in {"", cursor}:
        return False
    [rows] = await reads.read_many([("XRANGE", key, other, other)])
    return bool(rows)
