"""A group as lists and pages show it, open or closed. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from prorl_mq.rules.rewards import counting, statistics
from prorl_mq.schema.messages import GroupRecord, SampleRecord
from prorl_mq.schema.trajectory import FAILING_TOOLS

SHOWN: Final = 64  # rewards of a group in a list of groups
NOTES: Final = 4
NOTE_CHARS: Final = 160


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
    archived: bool = False  # the trainer has acknowledged it: this is the archive's copy
    closed_ms: int | None = None  # the last change of its jobs; null while it is open, and in an export
    tokens: Sequence[int] = ()  # sampled ones, of each sample that has a reward, 64 at most
    turns: Sequence[int] = ()  # of the same
    tool_calls: int = 0
    tool_failures: Mapping[str, int] = {}  # of each tool; of the 16 that failed most
    errors: Mapping[str, int] = {}  # samples that ended in an error, by its type
    notes: Mapping[str, int] = {}  # graders' words on samples without a reward above 0: how 4 begin, and on how many
    seconds: Mapping[str, float] = {}  # in each stage, of all samples together
    versions: tuple[int, int] | None = None  # of the policy: the oldest and newest that its tokens are of


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


def closed_summary(record: GroupRecord) -> GroupSummary:
    return summary_of(
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
        closed_ms=_closed_ms(record),
    )


def summary_of(*, records: Sequence[SampleRecord], reason: str | None = None, **about: Any) -> GroupSummary:
    stats = statistics(counting(records))
    kept = [record for record in records if not record.replaced]
    with_reward = [record for record in kept if record.reward is not None][:SHOWN]
    failures, seconds = Counter[str](), Counter[str]()
    for record in kept:
        failures.update(record.tool_failures)
        seconds.update(record.seconds)  # sums of any numbers
    versions = [version for record in kept for version in record.versions or ()]
    return GroupSummary(
        ended=len(records),
        outcomes=dict(Counter(record.outcome.value for record in records)),
        rewards=[record.reward for record in kept][:SHOWN],
        mean=stats.mean if stats else None,
        std=stats.std if stats else None,
        reason=reason,
        tokens=[record.response_tokens for record in with_reward],
        turns=[record.turns for record in with_reward],
        tool_calls=sum(record.tool_calls for record in kept),
        tool_failures=dict(failures.most_common(FAILING_TOOLS)),
        seconds={stage: round(spent, 3) for stage, spent in seconds.items()},
        errors=dict(Counter(record.error.type for record in kept if record.error is not None)),
        notes=dict(_notes(kept).most_common(NOTES)),
        versions=(min(versions), max(versions)) if versions else None,
        **about,
    )


def _notes(records: Sequence[SampleRecord]) -> Counter[str]:
    """Of samples that EVAL saw: an error is told as such."""
    failed = [record for record in records if record.note and not (record.reward or 0) > 0 and record.error is None]
    return Counter((record.note or "")[:NOTE_CHARS] for record in failed)


def _closed_ms(record: GroupRecord) -> int | None:
    """Time of the last change of a group's jobs."""
    lines = [line.rstrip("\n").rpartition("\n")[2] for line in record.timelines.values()]
    told = [int(line.partition("\t")[0]) for line in lines if line]
    return max(told, default=None)


def closed_view(record: GroupRecord) -> GroupView:
    gains = record.advantages or [None] * len(record.samples)
    samples = [ended_sample(each, gain) for each, gain in zip(record.samples, gains, strict=True)]
    return GroupView(summary=closed_summary(record), samples=samples, samples_wanted=0)


def ended_sample(record: SampleRecord, advantage: float | None) -> SampleView:
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
