"""The groups of a run, open ones and closed ones, and the samples of one of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from prorl_mq.errors import NotFound
from prorl_mq.rules.groups import replaced
from prorl_mq.rules.rewards import advantages, counting, statistics
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef, RunRef, job_ref, public, run_of
from prorl_mq.schema.items import StoredGroup
from prorl_mq.schema.messages import GroupRecord, SampleRecord
from prorl_mq.store import groups, jobs, results
from prorl_mq.store.store import Store

SCANNED: Final = 2_000  # groups that one page looks at to find those of a batch
SHOWN: Final = 64  # rewards of a group in a list of groups


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One group in a list. `state` is its verdict, or where it is: waiting, running, due, parked."""

    group_id: str
    batch_id: str
    task_id: str
    data_source: str
    state: str
    n: int
    jobs: int  # that there were, refills included
    ended: int
    outcomes: Mapping[str, int]
    rewards: Sequence[float | None]  # of the ended samples that were not replaced, 64 at most
    mean: float | None
    std: float | None
    policy_version: int | None
    reason: str | None


class GroupPage(msgspec.Struct, frozen=True, kw_only=True):
    """`next` is what to send as `after` for the following page; null: this is the last one."""

    groups: Sequence[GroupSummary]
    next: str | None


class SampleView(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a group. `state` is its outcome once it has ended; `record` is there then."""

    job_id: str
    index: int
    state: str
    stage: str | None
    owner: str | None
    attempt: int
    advantage: float | None
    record: SampleRecord | None


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """One group with all its samples, replaced ones too."""

    summary: GroupSummary
    samples: Sequence[SampleView]
    samples_wanted: int  # that are no jobs yet


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
                found.append(_closed_summary(record))
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
    return _closed_view(record)


def _batch(found: StoredGroup) -> str:
    return found.batch.rpartition(":")[2]


def _records(found: StoredGroup) -> list[SampleRecord]:
    ended = [decode(value, SampleRecord) for value in found.samples.values()]
    return replaced(sorted(ended, key=lambda each: each.index), found.n)


def _open_summary(found: StoredGroup) -> GroupSummary:
    return _summary(
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


def _closed_summary(record: GroupRecord) -> GroupSummary:
    return _summary(
        group_id=record.group_id,
        batch_id=record.batch_id,
        task_id=record.task_id,
        data_source=record.data_source,
        state=record.verdict.value,
        n=record.n,
        jobs=len(record.samples),
        records=record.samples,
        policy_version=record.policy_version,
        reason=record.reason,
    )


def _summary(*, records: Sequence[SampleRecord], reason: str | None = None, **about: Any) -> GroupSummary:
    stats = statistics(counting(records))
    return GroupSummary(
        ended=len(records),
        outcomes=dict(Counter(record.outcome.value for record in records)),
        rewards=[record.reward for record in records if not record.replaced][:SHOWN],
        mean=stats.mean if stats else None,
        std=stats.std if stats else None,
        reason=reason,
        **about,
    )


def _closed_view(record: GroupRecord) -> GroupView:
    gains = record.advantages or [None] * len(record.samples)
    samples = [_ended(each, gain) for each, gain in zip(record.samples, gains, strict=True)]
    return GroupView(summary=_closed_summary(record), samples=samples, samples_wanted=0)


async def _open_view(store: Store, found: StoredGroup) -> GroupView:
    records = {record.index: record for record in _records(found)}
    ended = list(records.values())
    gains = advantages(ended, statistics(counting(ended))) or [None] * len(ended)
    samples = [_ended(record, gain) for record, gain in zip(ended, gains, strict=True)]
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


def _ended(record: SampleRecord, advantage: float | None) -> SampleView:
    return SampleView(
        job_id=record.job_id,
        index=record.index,
        state=record.outcome.value,
        stage=None,
        owner=None,
        attempt=record.attempt,
        advantage=advantage,
        record=record,
    )
