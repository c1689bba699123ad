"""Cost and yield of a DAPO batch: one record, when the batch closes."""

from collections.abc import Iterable, Mapping

import msgspec

from prorl_mq.schema.dapo import Dapo, Surplus
from prorl_mq.schema.status import BatchReport, Reason, Spent

FILTERED = ("filtered_right", "filtered_wrong", "filtered_mixed")
COUNTED = ("accepted", *FILTERED, "failed", "cancelled", "expired")


def reason(text: str) -> Reason:
    """A closing reason as it was stored."""
    found: Reason = msgspec.convert(text, Reason)
    return found


def tally(kind: str, *, seconds: float, tokens: int, lost: Iterable[tuple[float, int]]) -> list[tuple[str, int]]:
    """Amounts that one closed group adds to its batch's counters. `lost`: seconds and tokens of replaced samples."""
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
    "ms:refilled:accepted", "drawn", "carried_in", "carried_out",
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
        acceptance_rate=accepted / judged if judged else None,
        waste_ratio=1 - used_ms / total_ms if total_ms else None,
        bias=biases(dapo),
        seconds=seconds,
    )


def biases(dapo: Dapo) -> list[str]:
    """Why the accepted groups are not a fair sample of what was asked for; empty: they are."""
    favours = "surplus=cancel: groups that end early are accepted more often"
    return [favours] if dapo.surplus is Surplus.CANCEL else []
