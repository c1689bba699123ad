"""What becomes of a group when its last open job has ended. Pure."""

from collections.abc import Sequence

import msgspec

from prorl_mq.lifecycle import COUNTS, REFILLED
from prorl_mq.messages import Outcome, SampleRecord, Verdict


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Refills to make, or the verdict to publish."""

    wanted: int = 0
    verdict: Verdict | None = None
    reason: str | None = None


def decide(samples: Sequence[SampleRecord], *, n: int, refills: int, max_refills: int, withdrawn: bool) -> Decision:
    """`samples` are all that have ended, replaced ones too; `refills` counts those made so far."""
    counted = sum(sample.outcome in COUNTS for sample in samples)
    if counted >= n:
        return Decision(verdict=Verdict.ACCEPTED)
    cancelled = sum(sample.outcome is Outcome.CANCELLED for sample in samples)
    if withdrawn or cancelled:
        return Decision(verdict=Verdict.CANCELLED, reason=f"{counted} of {n} samples ended before the cancel")
    expired = sum(sample.outcome is Outcome.EXPIRED for sample in samples)
    if expired:
        return Decision(verdict=Verdict.EXPIRED, reason=f"{expired} of {n} samples passed their total deadline")
    missing = n - counted
    if refills + missing <= max_refills:
        return Decision(wanted=missing)
    failed = sum(sample.outcome in REFILLED for sample in samples)
    reason = f"{failed} samples failed and {refills} of at most {max_refills} refills were used"
    return Decision(verdict=Verdict.FAILED, reason=reason)


def replaced(samples: Sequence[SampleRecord], n: int) -> list[SampleRecord]:
    """The samples, with as many lost ones marked as refills were made for them."""
    lost = [sample.index for sample in samples if sample.outcome in REFILLED]
    marks = set(lost[: max(0, len(samples) - n)])
    return [msgspec.structs.replace(each, replaced=True) if each.index in marks else each for each in samples]
