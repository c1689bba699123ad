"""Groups that wait for the archive, and the counts that are kept of them, as an audit sees them."""

from collections.abc import AsyncIterator
from typing import NamedTuple

from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.store.audit.reads import Reads, entries

AT_ONCE = 32  # records, which are large


class ArchiveCounts(NamedTuple):
    """Groups and bytes that are counted as waiting, and the runs that are listed with some."""

    groups: int
    bytes: int
    runs: frozenset[str]


class ArchiveFacts(NamedTuple):
    """Groups that wait, with the counts before and after the look. `named`: keys of their blobs."""

    groups: int
    bytes: int
    named: frozenset[str]
    before: ArchiveCounts
    after: ArchiveCounts


async def look(reads: Reads) -> ArchiveFacts:
    """Every group that waits for the archive."""
    before, groups, size, named = await _counts(reads), 0, 0, set[str]()
    for run in sorted(before.runs):
        async for record, held in _of_run(reads, RunRef(run)):
            groups, size = groups + 1, size + held
            named |= {sample.trajectory for sample in record.samples if sample.trajectory}
    return ArchiveFacts(groups, size, frozenset(named), before, await _counts(reads))


async def _of_run(reads: Reads, run: RunRef) -> AsyncIterator[tuple[GroupRecord, int]]:
    async for page in entries(reads, reads.keys.archive(run), count=AT_ONCE):
        for _, fields in page:
            yield decode(fields[1], GroupRecord), int(fields[3])


async def _counts(reads: Reads) -> ArchiveCounts:
    keys = reads.keys
    (groups, size), runs = await reads.read_at_once(
        [("HMGET", keys.archive_state, "groups", "bytes"), ("ZRANGE", keys.archiving, 0, -1)]
    )
    return ArchiveCounts(int(groups or 0), int(size or 0), frozenset(run.decode() for run in runs))
