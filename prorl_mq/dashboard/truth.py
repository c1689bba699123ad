"""What the queue itself says of jobs: their time lines, and how they ended."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef, JobRef, RunRef, group_of, group_ref, job_parts, job_ref, public, run_of
from prorl_mq.schema.intake import RESULT_FIELD
from prorl_mq.schema.messages import GroupRecord, SampleRecord
from prorl_mq.store import runs
from prorl_mq.store.store import Store, batched

SLICE: Final = 256


class TaskName(msgspec.Struct, frozen=True, kw_only=True):
    """Of a group's spec, what a human knows it by."""

    task_id: str = ""
    data_source: str = ""


class Told(NamedTuple):
    """One job. `lines` is empty if there is no such job any more."""

    lines: str = ""
    sample: SampleRecord | None = None
    task: TaskName | None = None


async def live(store: Store, refs: Sequence[JobRef]) -> dict[JobRef, Told]:
    """Jobs that may have ended since they were heard of."""
    lines = await store.read_many([("HGET", store.keys.job(ref), "line") for ref in refs])
    told = {ref: Told(line.decode()) for ref, line in zip(refs, lines, strict=True) if line}
    return told | await ended(store, [ref for ref in refs if ref not in told])


async def ended(store: Store, refs: Sequence[JobRef]) -> dict[JobRef, Told]:
    """Jobs that have ended: from their group, or from its record until the trainer acknowledges it."""
    asked = [
        (
            "HMGET",
            store.keys.group(group_of(ref)),
            f"t:{job_parts(ref).sample}",
            f"s:{job_parts(ref).sample}",
            "cursor",
        )
        for ref in refs
    ]
    told: dict[JobRef, Told] = {}
    published: dict[GroupRef, str] = {}
    for ref, (line, sample, cursor) in zip(refs, await store.read_many(asked), strict=True):
        if sample:
            told[ref] = Told((line or b"").decode(), decode(sample, SampleRecord))
        elif cursor:
            published[group_of(ref)] = cursor.decode()
    for group, packed in (await _records(store, published)).items():
        told |= _of_record(run_of(group), packed)
    return {ref: told.get(ref, Told()) for ref in refs}


async def tasks(store: Store, groups: Sequence[GroupRef]) -> dict[GroupRef, TaskName]:
    """The tasks of groups, until their results are acknowledged."""
    specs = await store.read_many([("GET", store.keys.open(group)) for group in groups])
    found = {group: decode(spec, TaskName) for group, spec in zip(groups, specs, strict=True) if spec}
    closed = [group for group in groups if group not in found]
    cursors = await store.read_many([("HGET", store.keys.group(group), "cursor") for group in closed])
    named = {group: cursor.decode() for group, cursor in zip(closed, cursors, strict=True) if cursor}
    records = await _records(store, named)
    return found | {group: decode(packed, TaskName) for group, packed in records.items()}


async def _records(store: Store, cursors: Mapping[GroupRef, str]) -> dict[GroupRef, bytes]:
    looks = [("XRANGE", store.keys.results(run_of(group)), cursor, cursor) for group, cursor in cursors.items()]
    rows = await store.read_many(looks)
    return {group: row[0][1][1] for group, row in zip(cursors, rows, strict=True) if row}


async def unsettled(store: Store) -> AsyncIterator[dict[JobRef, Told]]:
    """Every job of every group that has no record yet."""
    for run in await runs.known(store):
        cursor = b"0"
        while True:
            cursor, page = await store.read("SSCAN", store.keys.open_groups(run), cursor, "COUNT", SLICE)
            groups = [GroupRef(group.decode()) for group in page]
            made = await store.read_many([("HGET", store.keys.group(group), "next") for group in groups])
            refs = _refs(zip(groups, made, strict=True))
            for chunk in batched(refs, SLICE):
                yield await live(store, chunk)
            if cursor == b"0":
                break


async def published(store: Store, most: int) -> AsyncIterator[dict[JobRef, Told]]:
    """Groups whose record waits for the trainer, a run's newest first, until they have `most` jobs of it."""
    for run in await runs.known(store):
        last, left = "+", most
        while left > 0:
            rows = await store.read("XREVRANGE", store.keys.results(run), last, "-", "COUNT", 64)
            for entry, fields in rows:
                last = f"({entry.decode()}"
                if fields[0] == RESULT_FIELD:
                    told = _of_record(run, fields[1])
                    left -= len(told)
                    yield told
            if len(rows) < 64:
                break


def _refs(groups: Iterable[tuple[GroupRef, bytes | None]]) -> list[JobRef]:
    return [job_ref(group, index) for group, made in groups for index in range(int(made or 0))]


def _of_record(run: RunRef, packed: bytes) -> dict[JobRef, Told]:
    record = decode(packed, GroupRecord)
    group, task = group_ref(run, record.group_id), TaskName(task_id=record.task_id, data_source=record.data_source)
    told = {}
    for sample in record.samples:
        ref = job_ref(group, sample.index)
        told[ref] = Told(record.timelines.get(public(ref), ""), sample, task)
    return told
