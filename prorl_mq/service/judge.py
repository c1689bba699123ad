"""The verdict on a group that was drawn from a reservoir: whether it passes its batch's filter, and counts."""

from typing import NamedTuple

from prorl_mq.rules import dapo_report, filters, groups, records
from prorl_mq.rules.dapo import standing
from prorl_mq.rules.filters import Candidate, Filtered, FilterFailed
from prorl_mq.rules.groups import Withdrawal
from prorl_mq.rules.records import Group
from prorl_mq.schema.dapo import Surplus
from prorl_mq.schema.ids import tenant_of
from prorl_mq.schema.items import Seen, Settlement
from prorl_mq.schema.messages import Verdict
from prorl_mq.store import batches
from prorl_mq.store import groups as stored_groups
from prorl_mq.store.batches import Batch, DrawPlan
from prorl_mq.store.store import Store

KINDS = {Filtered.RIGHT: "filtered_right", Filtered.WRONG: "filtered_wrong", Filtered.MIXED: "filtered_mixed"}


class Ruling(NamedTuple):
    """Decision on a group none of whose jobs runs. Without a verdict it is parked: it cannot count yet."""

    verdict: Verdict | None = None
    reason: str | None = None
    kind: str = ""  # the counter of its batch


async def settle(store: Store, entry: str, group: Group, *, linger_ms: int) -> str:
    """Applies the verdict, and answers as `settle` does. A group that has moved meanwhile stays due.

    Raises `FilterBusy`: the group stays due.
    """
    batch, carried = await _look(store, group)
    plan = batch.plan
    if plan is not None and batches.is_open(batch) and batch.accepted >= plan.dapo.target_groups:
        await full(store, batch, plan)  # left by a process that died after the last acceptance
        return "moved"
    made = await _settlement(store, entry, group, batch, carried=carried)
    answer = await store.settle(made, linger_ms=linger_ms)
    last = plan is not None and batch.accepted + 1 >= plan.dapo.target_groups
    if plan is not None and made.counts and last and answer not in {"moved", "already"}:
        await full(store, batch, plan)
    return answer


async def full(store: Store, batch: Batch, plan: DrawPlan) -> None:
    """The target is reached: nothing more is accepted, and the rest goes where `surplus` says."""
    carry = plan.dapo.surplus is Surplus.CARRY
    await store.halt(batch.ref, "target", carry=carry, keep_ms=plan.dapo.carry_ms)


async def _look(store: Store, group: Group) -> tuple[Batch, bool]:
    looked = await batches.look(store, [group.batch])
    return looked[group.batch], await stored_groups.is_carried(store, group.ref)


async def _settlement(store: Store, entry: str, group: Group, batch: Batch, *, carried: bool) -> Settlement:
    seen = Seen(batch.phase, carried)
    decision = group.decide()
    if decision.verdict is None:
        jobs, wanted = group.stored.jobs, decision.wanted
        return Settlement(entry, group.ref, batch.ref, jobs, group.stored.changes, wanted=wanted, seen=seen)
    ruling = await _ruling(store, group, decision, batch, carried=carried)
    if ruling.verdict is None:
        return Settlement(entry, group.ref, batch.ref, 0, group.stored.changes, seen=seen, park=True)
    made = records.closing(entry, group, ruling.verdict, ruling.reason, seen)
    return made._replace(counts=ruling.verdict is Verdict.ACCEPTED, tally=_tally(group, ruling))


async def _ruling(store: Store, group: Group, decision: groups.Decision, batch: Batch, *, carried: bool) -> Ruling:
    if group.withdrawn is not None:
        if decision.verdict is Verdict.ACCEPTED:
            decision = groups.ended(group.withdrawn, groups.counting(group.samples), group.spec.n)
    elif carried:
        return Ruling()  # the filter of the batch that takes it over will judge it
    match decision.verdict:
        case Verdict.ACCEPTED if batch.plan is not None:
            return await _judged(store, group, batch, batch.plan)
        case Verdict.ACCEPTED:
            return _unneeded()  # its batch is forgotten
        case other:
            return Ruling(other, decision.reason, str(other))


async def _judged(store: Store, group: Group, batch: Batch, plan: DrawPlan) -> Ruling:
    try:
        kind = await filters.judge(plan.dapo.filter, _candidate(group), tenant=tenant_of(group.ref))
    except FilterFailed as failed:
        return Ruling(Verdict.FAILED, str(failed), "failed")
    if kind is not Filtered.KEPT:
        return Ruling(Verdict.FILTERED, kind.value, KINDS[kind])
    if not batches.is_open(batch):
        return _unneeded()
    if plan.dapo.surplus is Surplus.ORDERED:
        return await _in_order(store, group, batch, plan)
    return Ruling(Verdict.ACCEPTED, None, "accepted")


async def _in_order(store: Store, group: Group, batch: Batch, plan: DrawPlan) -> Ruling:
    mine = [(each.ref, each.parked or each.ref == group.ref) for each in await batches.in_play(store, batch.ref)]
    found = standing(mine, accepted=batch.accepted, target=plan.dapo.target_groups)
    if group.ref in found.accept:
        return Ruling(Verdict.ACCEPTED, None, "accepted")
    return _unneeded() if group.ref in found.reject else Ruling()


def _unneeded() -> Ruling:
    decision = groups.ended(Withdrawal.UNNEEDED, 0, 0)
    return Ruling(decision.verdict, decision.reason, "cancelled")


def _candidate(group: Group) -> Candidate:
    spec = group.spec
    return Candidate(task_id=spec.task_id, data_source=spec.data_source, rewards=group.rewards, samples=group.samples)


def _tally(group: Group, ruling: Ruling) -> list[tuple[str, int]]:
    lines = group.timelines()
    spent = [(records.leased_seconds(lines[each.job_id]), each.response_tokens) for each in group.samples]
    return dapo_report.tally(
        ruling.kind,
        seconds=sum(seconds for seconds, _ in spent),
        tokens=sum(tokens for _, tokens in spent),
        lost=[cost for cost, each in zip(spent, group.samples, strict=True) if each.replaced],
    )
