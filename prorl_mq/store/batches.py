"""A DAPO batch as it lies in Redis, read for decisions that a verb then checks again."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from prorl_mq.rules.dapo import Phase, Progress
from prorl_mq.rules.dapo_report import COUNTERS, FILTERED
from prorl_mq.schema.codec import decode
from prorl_mq.schema.dapo import Dapo, Reservoir
from prorl_mq.schema.ids import BatchRef, GroupRef, run_of
from prorl_mq.store.connection import ask, patiently
from prorl_mq.store.store import Store

_TEXTS = ("plan", "phase", "reason")
_NUMBERS = ("at", "groups", "stored", "joined", "closed", *COUNTERS)


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the batch's groups are drawn for; kept with the batch."""

    dapo: Dapo
    pool: str
    max_staleness: int | None = None


class Batch(NamedTuple):
    """One look at a batch. Without a plan it is none that samples, or it is forgotten."""

    ref: BatchRef
    plan: Plan | None
    phase: str
    reason: str
    numbers: Mapping[str, int]  # 0 where the field is missing


class InPlay(NamedTuple):
    """A drawn group without a record."""

    ref: GroupRef
    parked: bool


async def look(store: Store, refs: Sequence[BatchRef]) -> dict[BatchRef, Batch]:
    """Batches in one round trip."""
    wanted = list(dict.fromkeys(refs))
    rows = await store.read_many([("HMGET", store.keys.batch(ref), *_TEXTS, *_NUMBERS) for ref in wanted])
    return {ref: _batch(ref, row) for ref, row in zip(wanted, rows, strict=True)}


async def in_play(store: Store, ref: BatchRef, *, parked: bool = True) -> list[InPlay]:
    """A batch's groups in play, in the order of their draw; which of them are parked only if that is asked."""
    refs = [GroupRef(each.decode()) for each in await store.read("ZRANGE", store.keys.drawn(ref), 0, -1)]
    if not parked:
        return [InPlay(each, parked=False) for each in refs]
    flags = await store.read_many([("HEXISTS", store.keys.group(each), "parked") for each in refs])
    return [InPlay(each, bool(flag)) for each, flag in zip(refs, flags, strict=True)]


async def progress(store: Store, batch: Batch, plan: Plan, groups: Sequence[InPlay]) -> Progress:
    """What the formulas of `flow` want to know."""
    keys, numbers = store.keys, batch.numbers
    sources = [("ZCARD", keys.reservoir(batch.ref)), ("ZCARD", keys.reservoir(run_of(batch.ref)))]
    own, shared = await store.read_many(sources)
    return Progress(
        accepted=numbers["n:accepted"],
        filtered=filtered(numbers),
        parked=sum(each.parked for each in groups),
        in_play=len(groups),
        drawn=numbers["drawn"],
        waiting=int(own) + (int(shared) if plan.dapo.reservoir is Reservoir.RUN else 0),
        arrived=numbers["stored"] >= numbers["groups"],
    )


def filtered(numbers: Mapping[str, int]) -> int:
    """Groups that did not pass the filter."""
    return sum(numbers[f"n:{kind}"] for kind in FILTERED)


def is_open(batch: Batch) -> bool:
    return batch.phase == Phase.OPEN


def _batch(ref: BatchRef, row: Sequence[bytes | None]) -> Batch:
    plan, phase, reason = row[: len(_TEXTS)]
    numbers = {name: int(value or 0) for name, value in zip(_NUMBERS, row[len(_TEXTS) :], strict=True)}
    known = decode(plan, Plan) if plan else None
    return Batch(ref, known, (phase or b"").decode(), (reason or b"").decode(), numbers)


async def not_closed(store: Store) -> list[BatchRef]:
    """DAPO batches that are not closed."""
    return [BatchRef(ref.decode()) for ref in await store.read("ZRANGE", store.keys.dapo, 0, -1)]


async def erase(store: Store, refs: Sequence[BatchRef]) -> None:
    """Forgets batches, as if they had never been submitted. A repeat changes nothing."""
    keys = store.keys
    for ref in refs:
        await _write(store, "UNLINK", keys.batch(ref))
        await _write(store, "ZREM", keys.batches(run_of(ref)), ref)


async def _write(store: Store, *command: str) -> None:
    await patiently(lambda: ask(store.redis, *command), outage_ms=store.outage_ms)  # merge: Store.write
