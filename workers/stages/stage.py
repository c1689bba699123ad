"""The common part of the three stages: a stage turns one claimed job into one decision."""

import asyncio
from typing import Any, Protocol, TypeVar

import msgspec

from prorl_mq.schema.codec import decode, encode
from workers.stages.work import Carried, Move, Work

T = TypeVar("T")
_EMPTY = Carried()


class OverBudget(Exception):
    """INIT or EVAL ran out of its budget, or RUN before the policy spoke."""


class StageRunner(Protocol):
    """INIT, RUN or EVAL. Cancelling `perform` leaves nothing behind: it returns when everything it ran is dead."""

    async def perform(self, work: Work) -> Move: ...


def carried(work: Work) -> Carried:
    """The data that the stage before handed over."""
    return decode(work.claim.carry, Carried) if work.claim.carry else _EMPTY


def packed(carried_on: Carried) -> bytes:
    return encode(carried_on)


def with_seconds(carried_on: Carried, stage: str, seconds: float, **more: Any) -> Carried:
    """Adds a stage's duration, and changes `more` of it."""
    return msgspec.structs.replace(carried_on, seconds={**carried_on.seconds, stage: round(seconds, 6)}, **more)


class Budget:
    """A time limit, in ms: raises `OverBudget` at its end. A `TimeoutError` of the handler's own says nothing of it."""

    def __init__(self, ms: int) -> None:
        self._limit = asyncio.timeout(ms / 1000)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(self, *raised: object) -> None:
        try:
            await self._limit.__aexit__(*raised)  # type: ignore[arg-type]
        except TimeoutError:
            raise OverBudget from None


def returned(value: object, kind: type[T], work: Work) -> T:
    """The value that a handler returned. Raises `TypeError`, which says what it must be."""
    if not isinstance(value, kind):
        what = f"{work.held.stage} of {work.spec.data_source}"
        raise TypeError(f"{what} returned {value!r:.100}; a handler returns {kind.__name__} there")
    return value
