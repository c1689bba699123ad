"""A run's closed groups and batches: read in order, and deleted when the trainer acknowledges them."""

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from redis.exceptions import NoPermissionError, ResponseError

from prorl_mq.clock import monotonic
from prorl_mq.errors import InvalidCursor
from prorl_mq.schema import forms
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef, RunRef, batch_ref, group_ref, run_of, run_ref
from prorl_mq.schema.intake import ANSWER_FIELD, REPORT_FIELD, RESULT_FIELD, TRAINERS
from prorl_mq.schema.items import Ack
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.schema.status import BatchReport
from prorl_mq.store.core import USAGE, USERS, Repeat
from prorl_mq.store.server.acl import trainer_of
from prorl_mq.store.store import Store, batched

_CURSOR = re.compile(r"[0-9]{1,19}(-[0-9]{1,19})?")
ACKS_AT_ONCE: Final = 128  # results that one script deletes
BLOBS_AT_ONCE: Final = 1_000  # that one script deletes: a few milliseconds of Redis
RESULTS = frozenset({RESULT_FIELD, REPORT_FIELD})
UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"  # stands where a name is not UTF-8
INTAKES: Final = 4_096  # of one tenant in one look
NAMES: Final = 65_536  # of one tenant: Redis weighs them in two milliseconds
NAME_BYTES: Final = 512  # that a set takes for one, on average: at most 96, and its own
KEY_NAMES: Final = 8  # as much as the key itself may take
_RUN: Final = re.compile(forms.NAME.encode())
READ_BLOCK_MS = 4_000  # one blocking read; a longer wait is several


class _OwnedSample(msgspec.Struct):
    """The part of a `SampleRecord` that an acknowledgement needs."""

    trajectory: str | None = None
    trajectory_bytes: int = 0


class _Owned(msgspec.Struct):
    """The part of a `GroupRecord` that an acknowledgement needs: the rest is passed over, not decoded."""

    batch_id: str
    group_id: str
    samples: list[_OwnedSample]
    submitted_in: str | None = None


_owned: Final = msgspec.msgpack.Decoder(_Owned).decode


class Result(NamedTuple):
    """A closed group or batch as it lies in the result stream.

    `record` is a `GroupRecord` in MessagePack, or a `BatchReport` where `of_batch` is true.
    """

    cursor: str
    record: bytes
    of_batch: bool = False


async def collect(store: Store, run: RunRef, *, after: str = "0", wait_ms: int = 0, limit: int = 100) -> list[Result]:
    """Results after a cursor; waits up to `wait_ms` for the first. A cursor stays valid as long as its run."""
    give_up = monotonic() + wait_ms / 1000
    while True:
        found, after = await page(store, run, after=after, limit=limit)
        left_ms = int((give_up - monotonic()) * 1000)
        if found or left_ms <= 0:
            return found
        await of_any(store, {run: after}, wait_ms=max(1, min(left_ms, READ_BLOCK_MS)))


async def page(store: Store, run: RunRef, *, after: str, limit: int) -> tuple[list[Result], str]:
    """The results after a cursor that are there, and the cursor to continue with."""
    valid(after)
    while True:
        start = f"({after}" if after != "0" else "-"
        rows = await store.read("XRANGE", store.keys.results(run), start, "+", "COUNT", limit)
        # Answers to intake messages lie on the same stream: they move the cursor but are not results.
        found = [_result(entry, fields) for entry, fields in rows if fields[0] in RESULTS]
        after = rows[-1][0].decode() if rows else after
        if found or not rows:
            return found, after


async def of_any(store: Store, cursors: Mapping[RunRef, str], *, wait_ms: int) -> list[RunRef]:
    """Runs that have something after their cursors; waits for the first."""
    runs = {store.keys.results(run).encode(): run for run in cursors}
    words = ("XREAD", "BLOCK", wait_ms, "COUNT", 1, "STREAMS")
    reply = await store.wait_read(*words, *(name.decode() for name in runs), *cursors.values())
    return [runs[name] for name, _ in reply or ()]


async def acknowledge(store: Store, run: RunRef, cursors: Sequence[str]) -> int:
    """Deletes results with their groups and blobs, and answers; how many results were still there.

    Repeating it does nothing. Raises `RunMoved` or `RunArriving` for a run that is not here.
    """
    acked = 0
    for cursor in cursors:
        valid(cursor)
    for chunk in batched(cursors, ACKS_AT_ONCE):
        there = await _there(store, run, chunk)
        await drop_answers(store, run, [entry.decode() for entry, fields in there if fields[0] == ANSWER_FIELD])
        items = [_ack(store, run, _result(*row)) for row in there if row[1][0] in RESULTS]
        if not items:
            await store.ack(run, [])  # which refuses where the run has left: its results lie elsewhere then
        for part in _together(items):
            acked += (await store.ack(run, part)).count("acked")
    return acked


async def _there(store: Store, run: RunRef, cursors: Sequence[str]) -> list[Any]:
    """The entries of those cursors that still have one. Most lie side by side, and are read by one command."""
    stream, places = store.keys.results(run), [_parts(cursor) for cursor in cursors]
    rows = await store.read("XRANGE", stream, _text(min(places)), _text(max(places)), "COUNT", len(cursors))
    found = {_parts(entry.decode()): (entry, fields) for entry, fields in rows}
    seen = max(found) if len(rows) == len(cursors) else max(places)  # between others there may be more than fit
    rest = sorted({place for place in places if place > seen})
    alone = await store.read_many([("XRANGE", stream, _text(place), _text(place)) for place in rest])
    return [found[place] for place in dict.fromkeys(places) if place in found] + [row[0] for row in alone if row]


def _text(place: tuple[int, int]) -> str:
    return f"{place[0]}-{place[1]}"


def _together(items: Iterable[Ack]) -> Iterator[list[Ack]]:
    """Together as long as they have few blobs; a group that has more of them is a part of its own."""
    part, blobs_of_it = list[Ack](), 0
    for item in items:
        if part and blobs_of_it + len(item.blobs) > BLOBS_AT_ONCE:
            yield part
            part, blobs_of_it = [], 0
        part.append(item)
        blobs_of_it += len(item.blobs)
    if part:
        yield part


async def record(store: Store, run: RunRef, cursor: str) -> GroupRecord | None:
    """A closed group by its cursor; None when it was acknowledged."""
    rows = await store.read("XRANGE", store.keys.results(run), cursor, cursor)
    return decode(rows[0][1][1], GroupRecord) if rows else None


async def newest(store: Store, run: RunRef, *, before: str, limit: int) -> list[tuple[str, GroupRecord | None]]:
    """A page of what lies on the result stream, newest first; None for an entry that is no group.

    `before` is a cursor, left out itself, or empty for the newest page.
    """
    if before and not before.strip("0-"):  # Redis refuses the question what lies before the first position
        return []
    last = f"({before}" if before else "+"
    rows = await store.read("XREVRANGE", store.keys.results(run), last, "-", "COUNT", limit)
    return [
        (entry.decode(), decode(fields[1], GroupRecord) if fields[0] == RESULT_FIELD else None)
        for entry, fields in rows
    ]


async def tenants(store: Store) -> list[str]:
    """Tenants that have a Redis user of their own, by the names that `acl` gives those; none where it may not ask."""
    try:
        users = [name.decode(errors="replace") for name in await store.read(*USERS)]
    except NoPermissionError:
        return []
    return [tenant for user in users if (tenant := trainer_of(store.keys.namespace, user))]


async def intakes(store: Store) -> list[RunRef]:
    """Runs that have an intake, as users write them who may write everything; names that are no run's are left out."""
    names = [name.decode(errors="replace") for name in await store.read("SMEMBERS", store.keys.intakes)]
    return [RunRef(name) for name in names if name.count(":") == 1 and UNREADABLE not in name]


async def intakes_of(store: Store, tenant: str) -> list[RunRef]:
    """A tenant's runs that have an intake, `INTAKES` of them in one look; names that are none of a run are left out.

    Removes a set that holds more than names of runs do, and raises `ResponseError`: what the tenant's user has put
    there is memory that no quota counts, and read by every API process. A client puts its run's name there with each
    message.
    """
    key = store.keys.intakes_of(tenant)
    count, used = await store.read_many([("SCARD", key), (*USAGE, key, "SAMPLES", 0)])
    if count > NAMES or (used or 0) > NAME_BYTES * (count + KEY_NAMES):
        await store.write("UNLINK", key, repeat=Repeat.SAME)
        raise ResponseError(
            f"{count} names in {used} bytes are no names of runs with an intake (at most {NAMES}): they were removed; "
            "the next message of each run names it again"
        )
    found = await store.read("SRANDMEMBER", key, INTAKES)
    return [run_ref(tenant, name.decode()) for name in found if _RUN.fullmatch(name)]


async def drop_answers(store: Store, run: RunRef, answers: Sequence[str]) -> None:
    """Removes answers from a run's results, and from those that its trainer was given and has not acknowledged."""
    if answers:
        stream, keys = store.keys.results(run), store.keys
        await store.write_many(
            [("XACK", stream, TRAINERS, *answers), ("XDEL", stream, *answers), ("ZREM", keys.answers(run), *answers)]
        )


async def old_answers(store: Store, run: RunRef, *, before_ms: int, limit: int) -> list[str]:
    """Answers that were given before a moment, oldest first."""
    words = ("-inf", before_ms, "LIMIT", 0, limit)
    return [entry.decode() for entry in await store.read("ZRANGEBYSCORE", store.keys.answers(run), *words)]


def valid(cursor: str) -> None:
    """Raises `InvalidCursor`. A cursor is an id of a stream entry, or 0 for the beginning."""
    if not _CURSOR.fullmatch(cursor):
        raise InvalidCursor(f"{cursor[:64]!r} is no cursor: take one from a result, or 0 for the beginning")


def owned_bytes(record: GroupRecord | _Owned, record_bytes: int) -> int:
    """Bytes that a result holds in Redis."""
    return record_bytes + sum([sample.trajectory_bytes for sample in record.samples])


def blobs(store: Store, run: RunRef, record: GroupRecord | _Owned) -> list[str]:
    """Keys of the blobs that go with a result. Others are left alone: who writes to the stream may name any key."""
    own = store.keys.blobs(run)
    return [sample.trajectory for sample in record.samples if sample.trajectory and sample.trajectory.startswith(own)]


def _result(entry: bytes, fields: Sequence[bytes]) -> Result:
    return Result(entry.decode(), fields[1], of_batch=fields[0] == REPORT_FIELD)


def _ack(store: Store, run: RunRef, result: Result) -> Ack:
    if result.of_batch:
        report = decode(result.record, BatchReport)
        nobody = GroupRef(f"{run}:")  # a group of no name: there is none to delete
        return Ack(result.cursor, nobody, batch_ref(run, report.batch_id), [], len(result.record), admitted=False)
    record = _owned(result.record)
    batch = batch_ref(run, record.submitted_in or record.batch_id)  # where a repeat of its submission looks
    size = owned_bytes(record, len(result.record))
    return Ack(
        result.cursor, group_ref(run, record.group_id), batch, blobs(store, run, record), size, bool(record.samples)
    )


def before(cursor: str, limit: str) -> bool:
    """True if a stream id lies before another; a trailing plus includes the limit itself."""
    parts, bound = _parts(cursor), _parts(limit.removesuffix("+"))
    return parts <= bound if limit.endswith("+") else parts < bound


def _parts(cursor: str) -> tuple[int, int]:
    milliseconds, _, sequence = cursor.partition("-")
    return int(milliseconds), int(sequence or 0)


class GroupResult(NamedTuple):
    """Result of a group, if any. `known`: the group is there, open or closed; `result` is None before it closes."""

    known: bool
    result: Result | None


async def of_group(store: Store, group: GroupRef) -> GroupResult:
    """A group's result, if it has one that is not acknowledged."""
    digest, cursor = await store.read("HMGET", store.keys.group(group), "digest", "cursor")
    if cursor is None:
        return GroupResult(digest is not None, None)
    found = await records(store, {group: cursor.decode()})
    return GroupResult(digest is not None, Result(cursor.decode(), found[group]) if group in found else None)


async def records(store: Store, cursors: Mapping[GroupRef, str]) -> dict[GroupRef, bytes]:
    """Packed records of closed groups by their cursors; what was acknowledged is left out."""
    asked = [("XRANGE", store.keys.results(run_of(group)), cursor, cursor) for group, cursor in cursors.items()]
    rows = await store.read_many(asked)
    return {group: row[0][1][1] for group, row in zip(cursors, rows, strict=True) if row}


async def last_cursor(store: Store, run: RunRef) -> str:
    """The newest entry of a run's results, answers to messages included; 0 where there is none."""
    rows = await store.read("XREVRANGE", store.keys.results(run), "+", "-", "COUNT", 1)
    return rows[0][0].decode() if rows else "0"


async def newest_groups(store: Store, run: RunRef) -> AsyncIterator[bytes]:
    """Packed records of a run's closed groups, the newest first."""
    last = "+"
    while True:
        rows = await store.read("XREVRANGE", store.keys.results(run), last, "-", "COUNT", 64)
        for entry, fields in rows:
            last = f"({entry.decode()}"
            if fields[0] == RESULT_FIELD:
                yield fields[1]
        if len(rows) < 64:
            return
