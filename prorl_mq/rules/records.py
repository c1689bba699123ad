"""A group as it lies in Redis becomes the record that the trainer gets. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from prorl_mq.rules import bias, groups, rewards
from prorl_mq.rules.groups import Decision, Withdrawal
from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.ids import BatchRef, GroupRef, public
from prorl_mq.schema.items import GroupSpec, Seen, Settlement, StoredGroup
from prorl_mq.schema.messages import GroupRecord, SampleRecord, Verdict


class Group(NamedTuple):
    """An open group, read whole."""

    stored: StoredGroup
    spec: GroupSpec
    packed: Mapping[int, bytes]  # the samples that have ended, as their workers wrote them
    samples: Sequence[SampleRecord]  # the same, replaced ones marked

    @property
    def ref(self) -> GroupRef:
        return self.stored.ref

    @property
    def batch(self) -> BatchRef:
        return self.stored.batch

    @property
    def withdrawn(self) -> Withdrawal | None:
        return Withdrawal(self.stored.withdrawn) if self.stored.withdrawn else None

    @property
    def reserved(self) -> bool:
        """True if it was drawn from a reservoir, or waits in one."""
        return self.stored.order is not None

    @property
    def rewards(self) -> list[float]:
        return rewards.counting(self.samples)

    def timelines(self) -> dict[str, str]:
        lines = self.stored.timelines
        return {public(f"{self.ref}:{index}"): lines.get(index, "") for index in sorted(self.packed)}

    def decide(self) -> Decision:
        """The decision on it, filters aside."""
        return groups.decide(
            self.samples,
            n=self.spec.n,
            refills=self.stored.refills,
            max_refills=self.spec.max_refills,
            withdrawn=self.withdrawn,
        )


def whole(stored: StoredGroup | None) -> Group | None:
    """A group with its samples decoded; None if it is gone or published."""
    if stored is None or stored.spec is None or not stored.n:
        return None
    packed = {index: stored.samples[index] for index in range(stored.jobs) if index in stored.samples}
    samples = [decode(each, SampleRecord) for each in packed.values()]
    marked = groups.replaced(samples, stored.spec.n) if stored.jobs > stored.spec.n else samples
    return Group(stored, stored.spec, packed, marked)


def record(group: Group, verdict: Verdict, reason: str | None) -> bytes:
    """The `GroupRecord`, packed."""
    spec, batch = group.spec, group.batch.rpartition(":")[2]
    stats = rewards.statistics(group.rewards)
    raws = [
        msgspec.Raw(encode(sample) if sample.replaced else packed)
        for sample, packed in zip(group.samples, group.packed.values(), strict=True)
    ]
    _, run_id, group_id = group.ref.split(":")
    made = GroupRecord(
        run_id=run_id,
        batch_id=batch,
        group_id=group_id,
        task_id=spec.task_id,
        data_source=spec.data_source,
        verdict=verdict,
        samples=cast("list[SampleRecord]", raws),  # packed: what a newer worker wrote is kept
        n=spec.n,
        refills=group.stored.refills,
        reason=reason,
        rewards=stats,
        advantages=rewards.advantages(group.samples, stats),
        submitted_in=spec.batch if spec.batch != batch else None,
        carries=group.stored.carries,
        policy_version=group.stored.version,
        timelines=group.timelines(),
        purpose=spec.purpose,
    )
    return encode(made)


def closing(entry: str, group: Group, verdict: Verdict, reason: str | None, seen: Seen | None = None) -> Settlement:
    """The settlement that publishes a group."""
    data = record(group, verdict, reason)
    held = len(data) + sum(sample.trajectory_bytes for sample in group.samples)
    jobs, changes = group.stored.jobs, group.stored.changes
    losses = bias.of_group(group.samples)
    return Settlement(
        entry, group.ref, group.batch, jobs, changes, verdict=verdict, record=data, bytes=held, seen=seen, losses=losses
    )


_TOLD = frozenset({"cancel", "expire", "assign"})  # the lease continues


def leased_seconds(timeline: str) -> float:
    """Seconds for which workers held a job, all attempts together, by its time line (at most its last 64 events)."""
    total_ms, since = 0, 0
    for line in timeline.splitlines():
        ms, event = line.split("\t", 2)[:2]
        if event == "claim":
            since = int(ms)
        elif since and event not in _TOLD:
            total_ms += int(ms) - since
            since = 0
    return total_ms / 1000
