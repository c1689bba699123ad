"""Reads of jobs as Redis holds them at one moment, for decisions that a verb then checks again."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.faults import Cause
from prorl_mq.schema.ids import JobRef, group_of, job_parts, public
from prorl_mq.schema.items import GroupSpec
from prorl_mq.schema.messages import ErrorInfo, Limits, Outcome, SampleRecord, Sampling, Stage
from prorl_mq.schema.turns import LogReader
from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store

FIELDS = (
    "state", "stage", "token", "entry", "stream", "owner", "deaths", "attempts", "deadline", "trajectory", "ending",
    "until", "claimed", "outcome", "releases", "logged", "progress", "pause", "ends",
)  # fmt: skip

NUMBERS = ("deaths", "attempts", "deadline", "until", "claimed", "releases", "logged", "progress", "pause")


LOG_STEP: Final = 16  # records of a log that are read at once


class Snapshot(NamedTuple):
    """One job. Numbers are 0 and texts empty where the field is missing."""

    ref: JobRef
    state: str
    stage: Stage
    token: str
    entry: str
    stream: str
    owner: str
    deaths: int
    attempts: int
    deadline_ms: int
    trajectory: str
    ending: str
    until_ms: int
    claimed_ms: int
    outcome: str
    releases: int
    logged: int  # records in its log of turns
    progress: int  # workers that had died under it before its last logged turn
    pause_ms: int = 0  # the end of the pause that it is marked for, or in
    ends: str = ""  # what follows that


async def read(store: Store, refs: Sequence[JobRef]) -> list[Snapshot | None]:
    """A snapshot of each job, None where there is none."""
    rows = await store.read_many([("HMGET", store.keys.job(ref), *FIELDS) for ref in refs])
    return [_snapshot(ref, row) for ref, row in zip(refs, rows, strict=True)]


async def timeline(store: Store, ref: JobRef) -> str:
    """The newest events of a job, a line each; empty where there is no job."""
    line: bytes | None = await store.read("HGET", store.keys.job(ref), "line")
    return (line or b"").decode()


async def log(store: Store, ref: JobRef) -> list[bytes]:
    """The records in a job's log of turns, oldest first. One that is gone is empty: the others keep their places."""
    key = store.keys.job(ref)
    count = int(await store.read("HGET", key, "logged") or 0)
    records = await store.read("HMGET", key, *(f"log:{place}" for place in range(count))) if count else []
    return [record or b"" for record in records]


class LogPart(NamedTuple):
    """Records of turns in a job's log, without their numbers. `first`: the first that it has sampled itself; None
    without a log.
    """

    first: bytes | None
    records: Sequence[bytes]


async def log_part(
    store: Store, ref: JobRef, after: int, count: int, *, most_bytes: int, inherited: Sequence[bytes] = ()
) -> LogPart | None:
    """The records from turn `after` on: `count`, or fewer where they have `most_bytes`. None where the job has left
    RUN, or changes attempts meanwhile: what it logs then may be another rollout. `inherited`: those that a forked job
    has in front of its log. Raises `RecordUnreadable`.
    """
    key, about = store.keys.job(ref), ("stage", "attempts", "deaths", "releases")
    before: list[bytes | None] | None = None

    async def rows(place: int, step: int = LOG_STEP) -> AsyncGenerator[bytes, None]:
        nonlocal before
        more = True
        while more:
            row = await store.read("HMGET", key, *about, *(f"log:{each}" for each in range(place, place + step)))
            before = before or row[: len(about)]
            if row[: len(about)] != before or row[0] == Stage.EVAL.encode():
                raise _Changed
            there = [record for record in row[len(about) :] if record is not None]
            more, place, step = len(there) == step, place + step, LOG_STEP
            for record in there:
                yield record

    try:
        first = await _turns(rows(1, step=1), LogReader(), 1, most_bytes)
        found = list(inherited[2 * after : 2 * after + count])
        count, most_bytes = count - len(found), most_bytes - sum(map(len, found))
        if count and most_bytes >= 0:
            behind = 1 + max(0, 2 * after - len(inherited))  # or further: notes and parts are between records of turns
            found += await _turns(rows(behind), LogReader(2 * after), count, most_bytes)
    except _Changed:
        return None
    return LogPart(first[0] if first else None, found)


class _Changed(Exception):
    """A job has left RUN, or begun another attempt."""


async def _turns(rows: AsyncGenerator[bytes, None], reader: LogReader, count: int, most_bytes: int) -> list[bytes]:
    """The first records of turns."""
    found: list[bytes] = []
    async with aclosing(rows):
        async for logged in rows:
            if (record := reader.turn(logged)) is not None:
                found.append(record)
                most_bytes -= len(record)
            if len(found) == count or most_bytes < 0:
                break
    return found


async def saved(store: Store, ref: JobRef) -> tuple[bytes, str]:
    """The newest checkpoint of a job's sandbox, and the name of the file with its data where it is large; empty without
    one.
    """
    archive, file = await store.read("HMGET", store.keys.job(ref), "saved", "saved_in")
    return archive or b"", (file or b"").decode()


async def lends(store: Store, ref: JobRef) -> bool | None:
    """True if a fork may name a file with a checkpoint of a job; None where there is no such job."""
    state, lent = await store.read("HMGET", store.keys.job(ref), "state", "lent")
    return None if state is None else lent is not None


async def has_log(store: Store, ref: JobRef) -> bool:
    """True if turns of a job were logged, so that it can continue."""
    return bool(await store.read("HEXISTS", store.keys.job(ref), "logged"))


async def delayed_until(store: Store, ref: JobRef) -> int:
    """When a delayed job is tried again, in ms of Redis's clock; 0: it is not delayed."""
    return int(await store.read("ZSCORE", store.keys.delayed, ref) or 0)


async def delays_over(store: Store, *, limit: int) -> list[JobRef]:
    """Delayed jobs that may be tried again, oldest first."""
    return await _past(store, store.keys.delayed, limit)


async def deadlines_over(store: Store, *, limit: int) -> list[JobRef]:
    """Jobs past their total deadline, oldest first."""
    return await _past(store, store.keys.deadlines, limit)


async def pauses_over(store: Store, *, limit: int) -> list[JobRef]:
    """Parked jobs whose pause is over, oldest first."""
    return await _past(store, store.keys.paused, limit)


async def leases_over(store: Store, *, limit: int) -> list[JobRef]:
    """Jobs whose worker has not renewed its lease, oldest first."""
    return await _past(store, store.keys.leases, limit)


async def specs(store: Store, refs: Iterable[JobRef]) -> dict[JobRef, GroupSpec]:
    """The group's spec for each job. A group that is being settled has none: its jobs are over."""
    wanted = list(refs)
    found = await store.read_many([("GET", store.keys.open(group_of(ref))) for ref in wanted])
    return {ref: decode(packed, GroupSpec) for ref, packed in zip(wanted, found, strict=True) if packed}


async def end_leases(store: Store, gone: Sequence[JobRef]) -> None:
    """Removes the leases of jobs that there are no more."""
    if gone:
        await store.write("ZREM", store.keys.leases, *gone, repeat=Repeat.SAME)


async def end_deadlines(store: Store, gone: Sequence[JobRef]) -> None:
    """Removes the deadlines of jobs that there are no more."""
    if gone:
        await store.write("ZREM", store.keys.deadlines, *gone, repeat=Repeat.SAME)


UNKNOWN = GroupSpec(
    batch="", task_id="", data_source="", payload={}, n=1, max_refills=0, sampling=Sampling(), limits=Limits(),
    pool="policy",
)  # fmt: skip


async def _past(store: Store, timers: str, limit: int) -> list[JobRef]:
    found = await store.read("ZRANGEBYSCORE", timers, "-inf", await store.now_ms(), "LIMIT", 0, limit)
    return [JobRef(ref.decode()) for ref in found]


def ended(job: Snapshot, outcome: Outcome, *, message: str = "", kind: str = "") -> bytes:
    """The record of a job that no worker ended."""
    error = None
    if message:
        error = ErrorInfo(type=kind, message=message, stage=job.stage, retryable=True, cause=Cause.WORKER)
    record = SampleRecord(
        job_id=public(job.ref),
        index=job_parts(job.ref).sample,
        outcome=outcome,
        attempt=job.attempts + job.deaths,
        trajectory=job.trajectory or None,
        error=error,
    )
    return encode(record)


def _snapshot(ref: JobRef, row: Sequence[bytes | None]) -> Snapshot | None:
    if row[0] is None:
        return None
    text = {name: (value or b"").decode() for name, value in zip(FIELDS, row, strict=True)}
    number = {name: int(text[name] or 0) for name in NUMBERS}
    return Snapshot(
        ref=ref,
        state=text["state"],
        stage=Stage(text["stage"]),
        token=text["token"],
        entry=text["entry"],
        stream=text["stream"],
        owner=text["owner"],
        deaths=number["deaths"],
        attempts=number["attempts"],
        deadline_ms=number["deadline"],
        trajectory=text["trajectory"],
        ending=text["ending"],
        until_ms=number["until"],
        claimed_ms=number["claimed"],
        outcome=text["outcome"],
        releases=number["releases"],
        logged=number["logged"],
        progress=number["progress"],
        pause_ms=number["pause"],
        ends=text["ends"],
    )


class Holder(NamedTuple):
    """Holder of a job. `made`: the token of the attempt whose INIT was committed last; empty before that."""

    state: str
    stage: str
    token: str
    made: str


async def holders(store: Store, refs: Sequence[JobRef]) -> list[Holder | None]:
    """The holder of each job, None where there is no such job."""
    rows = await store.read_many([("HMGET", store.keys.job(ref), "state", "stage", "token", "made") for ref in refs])
    return [Holder(*((value or b"").decode() for value in row)) if row[0] is not None else None for row in rows]


async def admitted_ms(store: Store, ref: JobRef) -> int:
    """When a job was admitted, by Redis's clock; 0 where there is none."""
    return int(await store.read("HGET", store.keys.job(ref), "at") or 0)


async def timelines(store: Store, refs: Sequence[JobRef]) -> dict[JobRef, str]:
    """The event lines of each job that Redis holds."""
    lines = await store.read_many([("HGET", store.keys.job(ref), "line") for ref in refs])
    return {ref: line.decode() for ref, line in zip(refs, lines, strict=True) if line}
