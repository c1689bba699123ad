"""The groups of a run, open ones and closed ones, and the samples of one of them."""

from typing import Final

from prorl_mq.errors import NotFound
from prorl_mq.rules.group_views import (
    GroupPage,
    GroupSummary,
    GroupView,
    SampleView,
    closed_summary,
    closed_view,
    ended_sample,
    summary_of,
)
from prorl_mq.rules.groups import replaced
from prorl_mq.rules.rewards import advantages, counting, statistics
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef, RunRef, job_ref, public, run_of
from prorl_mq.schema.items import StoredGroup
from prorl_mq.schema.messages import SampleRecord
from prorl_mq.store import groups, jobs, results
from prorl_mq.store.store import Store

SCANNED: Final = 2_000  # groups that one page looks at to find those of a batch


async def open_groups(store: Store, run: RunRef, *, batch: str | None, after: str, limit: int) -> GroupPage:
    """Groups without a verdict, in no order: about `limit` of them. Raises nothing for a run that there is not."""
    found: list[GroupSummary] = []
    cursor, scanned = after, 0
    while True:
        page = await groups.page(store, run, cursor, count=limit)
        cursor, scanned = page.cursor, scanned + max(limit, len(page.refs))
        there = [each for each in await groups.read(store, sorted(page.refs)) if each is not None]
        found += [_open_summary(each) for each in there if batch in {None, _batch(each)}]
        if cursor == "0" or len(found) >= limit or scanned >= SCANNED:
            return GroupPage(groups=found, next=None if cursor == "0" else cursor)


async def closed_groups(store: Store, run: RunRef, *, batch: str | None, after: str, limit: int) -> GroupPage:
    """Groups with a verdict that are not acknowledged, the newest first."""
    found: list[GroupSummary] = []
    last, scanned = "" if after == "0" else after, 0
    while scanned < SCANNED:
        entries = await results.newest(store, run, before=last, limit=limit)
        if not entries:
            return GroupPage(groups=found, next=None)
        for cursor, record in entries:
            scanned, last = scanned + 1, cursor
            if record is not None and batch in {None, record.batch_id}:
                found.append(closed_summary(record))
            if len(found) == limit:
                break
        if len(found) == limit:
            break
    return GroupPage(groups=found, next=last)


async def group(store: Store, ref: GroupRef) -> GroupView:
    """Raises `NotFound`, also for a group that was acknowledged."""
    [found] = await groups.read(store, [ref])
    if found is None:
        raise NotFound(f"there is no group {public(ref)!r}, or its result was acknowledged")
    if not found.cursor:
        return await _open_view(store, found)
    record = await results.record(store, run_of(ref), found.cursor)
    if record is None:
        raise NotFound(f"the result of group {public(ref)!r} was acknowledged")
    return closed_view(record)


def _batch(found: StoredGroup) -> str:
    return found.batch.rpartition(":")[2]


def _records(found: StoredGroup) -> list[SampleRecord]:
    ended = [decode(value, SampleRecord) for value in found.samples.values()]
    return replaced(sorted(ended, key=lambda each: each.index), found.n)


def _open_summary(found: StoredGroup) -> GroupSummary:
    return summary_of(
        group_id=public(found.ref).partition(":")[2],
        batch_id=_batch(found),
        task_id=found.spec.task_id if found.spec else "",
        data_source=found.spec.data_source if found.spec else "",
        state=_state(found),
        n=found.n,
        jobs=found.jobs,
        records=_records(found),
        policy_version=found.version,
    )


def _state(found: StoredGroup) -> str:
    if found.verdict:
        return found.verdict
    if found.parked:
        return "parked"
    if found.wanted and not found.open:
        return "waiting"
    return "running" if found.open else "due"


async def _open_view(store: Store, found: StoredGroup) -> GroupView:
    records = {record.index: record for record in _records(found)}
    ended = list(records.values())
    gains = advantages(ended, statistics(counting(ended))) or [None] * len(ended)
    samples = [ended_sample(record, gain) for record, gain in zip(ended, gains, strict=True)]
    refs = [job_ref(found.ref, index) for index in range(found.jobs) if index not in records]
    for ref, job in zip(refs, await jobs.read(store, refs), strict=True):
        if job is not None:
            live = SampleView(
                job_id=public(ref), index=int(ref.rpartition(":")[2]), state=job.state, stage=job.stage,
                owner=job.owner or None, attempt=job.attempts + job.deaths, advantage=None, record=None,
            )  # fmt: skip
            samples.append(live)
    samples.sort(key=lambda each: each.index)
    return GroupView(summary=_open_summary(found), samples=samples, samples_wanted=found.wanted)
