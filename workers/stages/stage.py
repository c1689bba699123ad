"""The common part of the three stages: a stage turns one claimed job into one decision."""

from typing import Protocol

import msgspec

from prorl_mq.schema.codec import decode, encode
from workers.stages.work import Carried, Move, Work

_EMPTY = Carried()


class StageRunner(Protocol):
    """INIT, RUN or EVAL. Cancelling `perform` leaves nothing behind: it returns when everything it ran is dead."""

    async def perform(self, work: Work) -> Move: ...


def carried(work: Work) -> Carried:
    """The data that the stage before handed over."""
    return decode(work.claim.carry, Carried) if work.claim.carry else _EMPTY


def packed(carried_on: Carried) -> bytes:
    return encode(carried_on)


def with_seconds(carried_on: Carried, stage: str, seconds: float) -> Carried:
    """Adds a stage's duration."""
    return msgspec.structs.replace(carried_on, seconds={**carried_on.seconds, stage: round(seconds, 6)})
