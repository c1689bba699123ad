"""Decision on a group when a verdict on it is due. Pure."""

from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never

import msgspec

from prorl_mq.schema.lifecycle import COUNTS, REFILLED
from prorl_mq.schema.messages import Outcome, SampleRecord, Verdict


class Withdrawal(StrEnum):
    """Why a group was withdrawn: nothing more of it is started, and what runs is stopped."""

    CANCEL = "cancel"  # the trainer wants it no more
    UNNEEDED = "unneeded"  # its batch has closed without it
    UNADOPTED = "unadopted"  # no batch took it over in time
    STALE = "stale"  # its policy is older than the batch that would take it over allows

    @classmethod
    def _missing_(cls, value: object) -> "Withdrawal":  # noqa: ARG003 - Enum names it
        """A reason that another release wrote ends the group as a cancel does."""
        return cls.CANCEL


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Refills to make, or the verdict to publish."""

    wanted: int = 0
    verdict: Verdict | None = None
    reason: str | None = None


def decide(
    samples: Sequence[SampleRecord],
    *,
    n: int,
    refills: int,
    max_refills: int,
    withdrawn: Withdrawal | None,
) -> Decision:
    """`samples` are all that have ended, replaced ones too; `refills` counts those made so far."""
    counted = counting(samples)
    if counted >= n:
        return Decision(verdict=Verdict.ACCEPTED)
    cancelled = sum(sample.outcome is Outcome.CANCELLED for sample in samples)
    if withdrawn is not None or cancelled:
        return ended(withdrawn or Withdrawal.CANCEL, counted, n)
    expired = sum(sample.outcome is Outcome.EXPIRED for sample in samples)
    if expired:
        return Decision(verdict=Verdict.EXPIRED, reason=f"{expired} of {n} samples passed their total deadline")
    missing = n - counted
    if refills + missing <= max_refills:
        return Decision(wanted=missing)
    failed = sum(sample.outcome in REFILLED for sample in samples)
    reason = f"{failed} samples failed and {refills} of at most {max_refills} refills were used"
    return Decision(verdict=Verdict.FAILED, reason=reason)


def ended(why: Withdrawal, counted: int, n: int) -> Decision:
    """The verdict on a group that was withdrawn."""
    match why:
        case Withdrawal.CANCEL:
            return Decision(verdict=Verdict.CANCELLED, reason=f"{counted} of {n} samples ended before the cancel")
        case Withdrawal.UNNEEDED:
            return Decision(verdict=Verdict.CANCELLED, reason="not needed: its batch is complete without it")
        case Withdrawal.UNADOPTED:
            return Decision(verdict=Verdict.EXPIRED, reason="no batch of its run took it over in time")
        case Withdrawal.STALE:
            return Decision(verdict=Verdict.EXPIRED, reason="its policy version is older than max_staleness allows")
        case _:
            assert_never(why)


def counting(samples: Sequence[SampleRecord]) -> int:
    """Number of samples that count."""
    return sum(sample.outcome in COUNTS for sample in samples)


def replaced(samples: Sequence[SampleRecord], n: int) -> list[SampleRecord]:
    """The samples, with as many lost ones marked as refills were made for them."""
    lost = [sample.index for sample in samples if sample.outcome in REFILLED]
    marks = set(lost[: max(0, len(samples) - n)])
    return [msgspec.structs.replace(each, replaced=True) if each.index in marks else each for each in samples]
