"""What a DAPO batch cost and what it gave: one record, when the batch closes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from prorl_mq.schema.dapo import Dapo, Surplus

Reason = Literal["target", "exhausted", "cancelled"]
FILTERED = ("filtered_right", "filtered_wrong", "filtered_mixed")
COUNTED = ("accepted", *FILTERED, "failed", "cancelled", "expired")


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds` are those under a worker's lease, all attempts together; `tokens` are sampled ones of ended samples."""

    count: int = 0  # groups; of `refilled`: samples
    seconds: float = 0.0
    tokens: int = 0


class BatchReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every group that the batch closed, by how; each with all that it cost, also before it was carried over."""

    run_id: str
    batch_id: str
    reason: Reason
    target_groups: int
    surplus: Surplus
    accepted: Spent
    filtered_right: Spent  # uninformative: all samples were right
    filtered_wrong: Spent  # uninformative: none was
    filtered_mixed: Spent
    failed: Spent
    cancelled: Spent  # not needed ones too, most of which were never drawn and cost nothing
    expired: Spent
    refilled: Spent  # samples in place of which another one ran; part of their groups' cost
    drawn: int  # groups, from reservoirs
    carried_in: int
    carried_out: int
    early_dropped: int = 0  # part of the filtered ones
    early_drop_lost: float = 0.0  # how many of them would have been kept, as the rule itself believes
    acceptance_rate: float | None = None  # accepted / (accepted + filtered)
    waste_ratio: float | None = None  # seconds that are in no accepted group's counting samples, over all seconds
    bias: Sequence[str] = ()
    seconds: float = 0.0  # from its submission to its report
    schema: int = 1


def reason(text: str) -> Reason:
    """A closing reason as it was stored."""
    found: Reason = msgspec.convert(text, Reason)
    return found


def tally(kind: str, *, seconds: float, tokens: int, lost: Iterable[tuple[float, int]]) -> list[tuple[str, int]]:
    """What one closed group adds to its batch's counters. `lost`: seconds and tokens of each replaced sample."""
    replaced = list(lost)
    added = [(f"n:{kind}", 1), (f"ms:{kind}", round(seconds * 1000)), (f"tokens:{kind}", tokens)]
    if replaced:
        added += [
            ("n:refilled", len(replaced)),
            ("ms:refilled", round(sum(s for s, _ in replaced) * 1000)),
            ("tokens:refilled", sum(t for _, t in replaced)),
        ]
        if kind == "accepted":
            added.append(("ms:refilled:accepted", round(sum(s for s, _ in replaced) * 1000)))
    return added


COUNTERS = (
    *(f"{what}:{kind}" for kind in (*COUNTED, "refilled") for what in ("n", "ms", "tokens")),
    "ms:refilled:accepted", "n:dropped", "lost:dropped", "n:min_k", "drawn", "carried_in", "carried_out",
)  # fmt: skip


def report(
    run_id: str, batch_id: str, dapo: Dapo, reason: Reason, counters: Mapping[str, int], *, seconds: float
) -> BatchReport:
    """`counters` are those of `COUNTERS`; missing ones are 0."""

    def number(name: str) -> int:
        return counters.get(name, 0)

    def spent(kind: str) -> Spent:
        return Spent(count=number(f"n:{kind}"), seconds=number(f"ms:{kind}") / 1000, tokens=number(f"tokens:{kind}"))

    accepted, judged = number("n:accepted"), sum(number(f"n:{kind}") for kind in ("accepted", *FILTERED))
    used_ms, total_ms = number("ms:accepted") - number("ms:refilled:accepted"), sum(number(f"ms:{k}") for k in COUNTED)
    return BatchReport(
        run_id=run_id,
        batch_id=batch_id,
        reason=reason,
        target_groups=dapo.target_groups,
        surplus=dapo.surplus,
        accepted=spent("accepted"),
        filtered_right=spent("filtered_right"),
        filtered_wrong=spent("filtered_wrong"),
        filtered_mixed=spent("filtered_mixed"),
        failed=spent("failed"),
        cancelled=spent("cancelled"),
        expired=spent("expired"),
        refilled=spent("refilled"),
        drawn=number("drawn"),
        carried_in=number("carried_in"),
        carried_out=number("carried_out"),
        early_dropped=number("n:dropped"),
        early_drop_lost=number("lost:dropped") / 1_000_000,
        acceptance_rate=accepted / judged if judged else None,
        waste_ratio=1 - used_ms / total_ms if total_ms else None,
        bias=biases(dapo, counters),
        seconds=seconds,
    )


def biases(dapo: Dapo, counters: Mapping[str, int]) -> list[str]:
    """Why the accepted groups are not a fair sample of what was asked for; empty: they are."""
    found = []
    if dapo.surplus is Surplus.CANCEL:
        found.append("surplus=cancel: groups that end early are accepted more often")
    if dapo.early_drop is not None:
        found.append(f"early_drop={dapo.early_drop:g}: {counters.get('n:dropped', 0)} groups were dropped unfinished")
    if counters.get("n:min_k"):
        found.append(f"accept: {counters['n:min_k']} groups closed with the samples that ended first")
    return found
