"""A DAPO batch as it lies in Redis, read for decisions that a verb then checks again."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from prorl_mq.errors import RedisUnavailable
from prorl_mq.rules.dapo import BatchProgress
from prorl_mq.rules.dapo_report import COUNTERS, FILTERED
from prorl_mq.schema.codec import decode
from prorl_mq.schema.dapo import Dapo, Phase, Reservoir
from prorl_mq.schema.ids import BatchRef, GroupRef, RunRef, public, run_of
from prorl_mq.schema.items import NewBatch, NewGroup
from prorl_mq.schema.status import BatchReport
from prorl_mq.store.core import Command, Repeat
from prorl_mq.store.store import BATCH, Store, batched

SYNC_MS = 5_000  # how long one wait for the server's disk may take
TEXTS = ("plan", "phase", "reason")
NUMBERS = ("at", "groups", "stored", "joined", "closed", *COUNTERS)


class DrawPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters by which a batch's groups are drawn; kept with the batch."""

    dapo: Dapo
    pool: str
    max_staleness: int | None = None


class Batch(NamedTuple):
    """One look at a batch. Without a plan it is none that samples, or it is forgotten."""

    ref: BatchRef
    plan: DrawPlan | None
    phase: str
    reason: str
    numbers: Mapping[str, int]  # counters, those of its report among them; 0 where Redis has none

    @property
    def submitted_ms(self) -> int:
        return self.numbers["at"]

    @property
    def stored(self) -> int:
        """Groups of its own that are stored."""
        return self.numbers["stored"]

    @property
    def joined(self) -> int:
        """Groups that came from other batches: drawn from the run's reservoir, or carried over."""
        return self.numbers["joined"]

    @property
    def drawn(self) -> int:
        return self.numbers["drawn"]

    @property
    def closed(self) -> int:
        """Groups that have their record."""
        return self.numbers["closed"]

    @property
    def accepted(self) -> int:
        """Groups that count towards its target."""
        return self.numbers["n:accepted"]


class BatchCounts(NamedTuple):
    """Progress of a batch. All fields from `plan` on are empty unless it is a DAPO batch."""

    groups: int  # of its own
    joined: int
    closed: int
    verdicts: Mapping[str, int]
    plan: DrawPlan | None
    phase: str
    drawn: int
    accepted: int
    filtered: int  # groups that did not pass the filter
    report: BatchReport | None
    report_cursor: str | None


class InPlay(NamedTuple):
    """A drawn group without a record."""

    ref: GroupRef
    parked: bool


async def look(store: Store, refs: Sequence[BatchRef]) -> dict[BatchRef, Batch]:
    """Batches in one round trip."""
    wanted = list(dict.fromkeys(refs))
    rows = await store.read_many([("HMGET", store.keys.batch(ref), *TEXTS, *NUMBERS) for ref in wanted])
    return {ref: _batch(ref, row) for ref, row in zip(wanted, rows, strict=True)}


async def not_closed(store: Store) -> list[BatchRef]:
    """DAPO batches that have no report yet, oldest first."""
    return [BatchRef(ref.decode()) for ref in await store.read("ZRANGE", store.keys.dapo, 0, -1)]


async def exists(store: Store, ref: BatchRef) -> bool:
    """True if the batch was stored and is not forgotten."""
    return bool(await store.read("EXISTS", store.keys.batch(ref)))


async def digest(store: Store, ref: BatchRef) -> str | None:
    """The digest of a batch's body; None where it was not stored, or is forgotten."""
    found = await store.read("HGET", store.keys.batch(ref), "digest")
    return None if found is None else found.decode()


async def foreseen(store: Store, batch: NewBatch, groups: Sequence[NewGroup]) -> list[str]:
    """The answer that `submit` would give to all of a batch's groups now. It changes nothing."""
    keys = store.keys
    fields = ("digest", "phase", *(f"g:{group.ref}" for group in groups))
    names = [keys.group(group.ref) for group in groups]
    exist = [("EXISTS", *some) for some in batched(names, BATCH)]
    (digest, phase, *acknowledged), *some = await store.read_many([("HMGET", keys.batch(batch.ref), *fields), *exist])
    bodies = [("HGET", name, "digest") for name in names]
    there = await store.read_many(bodies) if any(some) else [None] * len(names)  # of a new batch none is
    if digest is not None and digest.decode() != batch.digest:
        return ["conflict"]
    known = [here or before for here, before in zip(there, acknowledged, strict=True)]
    words = [
        "stored" if body is None else "already" if body.decode() == group.digest else "conflict"
        for group, body in zip(groups, known, strict=True)
    ]
    ended = "conflict" not in words and "stored" in words and phase not in {None, Phase.OPEN.encode()}
    return ["ended"] if ended else words


async def newest(store: Store, run: RunRef, *, limit: int) -> list[tuple[BatchRef, int]]:
    """A run's newest batches and when each came, in ms; some of them may be forgotten."""
    row = await store.read("ZRANGE", store.keys.batches(run), 0, limit - 1, "REV", "WITHSCORES")
    return [(BatchRef(name.decode()), int(came)) for name, came in zip(row[::2], row[1::2], strict=True)]


async def counts(store: Store, ref: BatchRef) -> BatchCounts | None:
    """The progress of a batch; None if there is no such batch."""
    row = await store.read("HGETALL", store.keys.batch(ref))
    fields = {name.decode(): value for name, value in zip(row[::2], row[1::2], strict=True)}
    return _counts(fields) if "groups" in fields else None


async def waiting(store: Store, ref: BatchRef) -> tuple[int, int]:
    """Numbers of a batch's groups: those in play, and those that wait in its reservoir."""
    keys = store.keys
    in_play, undrawn = await store.read_many([("ZCARD", keys.drawn(ref)), ("ZCARD", keys.reservoir(ref))])
    return int(in_play), int(undrawn)


async def in_play(store: Store, ref: BatchRef) -> list[InPlay]:
    """A batch's groups in play, in the order of their draw."""
    keys = store.keys
    drawn, parked = await store.read_many([("ZRANGE", keys.drawn(ref), 0, -1), ("ZRANGE", keys.parked(ref), 0, -1)])
    waiting = set(parked)
    return [InPlay(GroupRef(each.decode()), each in waiting) for each in drawn]


async def progress(store: Store, batch: Batch, plan: DrawPlan) -> BatchProgress:
    """The input of the formulas of `flow`."""
    keys = store.keys
    sources = [keys.drawn(batch.ref), keys.parked(batch.ref), keys.reservoir(batch.ref)]
    sources.append(keys.reservoir(run_of(batch.ref)))
    drawn, parked, own, shared = await store.read_many([("ZCARD", key) for key in sources])
    return BatchProgress(
        accepted=batch.accepted,
        filtered=_filtered(batch.numbers),
        parked=int(parked),
        in_play=int(drawn),
        drawn=batch.drawn,
        waiting=int(own) + (int(shared) if plan.dapo.reservoir is Reservoir.RUN else 0),
        arrived=batch.stored >= batch.numbers["groups"],
    )


async def forget(store: Store, ref: BatchRef) -> None:
    """Takes a batch off the list of those that are drawn for: it is closed, or it was erased."""
    await store.write("ZREM", store.keys.dapo, ref, repeat=Repeat.SAME)


async def erase(store: Store, refs: Sequence[BatchRef]) -> None:
    """Forgets batches, as if they had never been submitted, in one round trip."""
    keys = store.keys
    unlinks: list[Command] = [("UNLINK", keys.batch(ref)) for ref in refs]
    await store.write_many([*unlinks, *(("ZREM", keys.batches(run_of(ref)), ref) for ref in refs)])


def _filtered(numbers: Mapping[str, int | bytes]) -> int:
    return sum(int(numbers.get(f"n:{kind}", 0)) for kind in FILTERED)


def is_open(batch: Batch) -> bool:
    return batch.phase == Phase.OPEN


def _batch(ref: BatchRef, row: Sequence[bytes | None]) -> Batch:
    plan, phase, reason = row[: len(TEXTS)]
    numbers = {name: int(value or 0) for name, value in zip(NUMBERS, row[len(TEXTS) :], strict=True)}
    known = decode(plan, DrawPlan) if plan else None
    return Batch(ref, known, (phase or b"").decode(), (reason or b"").decode(), numbers)


def _counts(fields: Mapping[str, bytes]) -> BatchCounts:
    def number(name: str) -> int:
        return int(fields.get(name, 0))

    return BatchCounts(
        groups=number("groups"),
        joined=number("joined"),
        closed=number("closed"),
        verdicts={name.removeprefix("v:"): int(value) for name, value in fields.items() if name.startswith("v:")},
        plan=decode(fields["plan"], DrawPlan) if "plan" in fields else None,
        phase=fields.get("phase", b"").decode(),
        drawn=number("drawn"),
        accepted=number("n:accepted"),
        filtered=_filtered(fields),
        report=decode(fields["report"], BatchReport) if "report" in fields else None,
        report_cursor=fields["cursor"].decode() if "cursor" in fields else None,
    )


async def server(store: Store) -> bytes:
    """The server's process as it names itself: another one after each restart."""
    return _process(await store.read("INFO", "server"))


async def sync(store: Store, batch: BatchRef, *, stored_by: bytes) -> None:
    """Waits until a batch that was submitted to the process `stored_by` is in the append-only file on its disk.

    WAITAOF waits for what its own connection wrote last: here a key of no meaning, which lies behind all of the
    submission, whichever connection that took. Raises `RedisUnavailable` if the disk does not answer in time, or if
    the server was started again meanwhile: then it may have lost what no disk had yet.
    """
    wait_ms = min(SYNC_MS, store.outage_ms)
    touch, wait = ("SET", store.keys.duty("waitaof"), "x", "PX", 1000), ("WAITAOF", 1, 0, wait_ms)
    _, (on_disk, _), about = await store.write_many([touch, wait, ("INFO", "server")], blocks=True)
    if not on_disk or _process(about) != stored_by:
        why = f"did not have it on disk within {wait_ms / 1000:.0f} s" if not on_disk else "was started again meanwhile"
        raise RedisUnavailable(f"batch {public(batch)!r} may be lost, since Redis {why}: submit it again")


def _process(about: bytes) -> bytes:
    return next(line for line in about.splitlines() if line.startswith(b"run_id:"))
