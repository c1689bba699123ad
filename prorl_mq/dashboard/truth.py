"""Reads of the queue itself about jobs: their time lines, and how they ended."""

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

import msgspec

from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef, JobRef, RunRef, group_of, group_ref, job_ref, public, run_of
from prorl_mq.schema.messages import GroupRecord, SampleRecord
from prorl_mq.store import groups, jobs, results, runs
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
    told = {ref: Told(lines) for ref, lines in (await jobs.timelines(store, refs)).items()}
    return told | await ended(store, [ref for ref in refs if ref not in told])


async def ended(store: Store, refs: Sequence[JobRef]) -> dict[JobRef, Told]:
    """Jobs that have ended: from their group, or from its record until the trainer acknowledges it."""
    told: dict[JobRef, Told] = {}
    closed: dict[GroupRef, str] = {}
    for ref, (lines, sample, cursor) in zip(refs, await groups.samples(store, refs), strict=True):
        if sample:
            told[ref] = Told(lines, decode(sample, SampleRecord))
        elif cursor:
            closed[group_of(ref)] = cursor
    for group, packed in (await results.records(store, closed)).items():
        told |= _of_record(run_of(group), packed)
    return {ref: told.get(ref, Told()) for ref in refs}


async def tasks(store: Store, refs: Sequence[GroupRef]) -> dict[GroupRef, TaskName]:
    """The tasks of groups, until their results are acknowledged."""
    found = await groups.specs(store, refs)
    cursors = await groups.cursors(store, [ref for ref in refs if ref not in found])
    found |= await results.records(store, cursors)
    return {group: decode(packed, TaskName) for group, packed in found.items()}


async def unsettled(store: Store) -> AsyncIterator[dict[JobRef, Told]]:
    """Every job of every group that has no record yet."""
    for run in await runs.known(store):
        async for refs in groups.pages(store, run):
            made = await groups.jobs(store, refs)
            for chunk in batched(itertools.chain.from_iterable(made.values()), SLICE):
                yield await live(store, chunk)


async def published(store: Store, most: int) -> AsyncIterator[dict[JobRef, Told]]:
    """Groups whose record waits for the trainer, a run's newest first, until they have `most` jobs of it."""
    for run in await runs.known(store):
        left = most
        async for packed in results.newest_groups(store, run):
            told = _of_record(run, packed)
            left -= len(told)
            yield told
            if left <= 0:
                break


def _of_record(run: RunRef, packed: bytes) -> dict[JobRef, Told]:
    record = decode(packed, GroupRecord)
    group, task = group_ref(run, record.group_id), TaskName(task_id=record.task_id, data_source=record.data_source)
    told = {}
    for sample in record.samples:
        ref = job_ref(group, sample.index)
        told[ref] = Told(record.timelines.get(public(ref), ""), sample, task)
    return told
