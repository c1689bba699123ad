"""Groups as Redis holds them: open ones, due ones, and those that wait in a reservoir or a carry-over."""

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from prorl_mq.errors import InvalidCursor
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import BatchRef, GroupRef, JobRef, RunRef, group_of, job_parts, job_ref, run_of
from prorl_mq.schema.items import GroupSpec, StoredGroup
from prorl_mq.store.store import Store

_SAMPLE, _LINE = "s:", "t:"
PAGE: Final = 256


class Due(NamedTuple):
    """An entry of the stream of groups whose verdict is due."""

    entry: str
    ref: GroupRef


class OpenPage(NamedTuple):
    """Some open groups of a run, in no order. `cursor` is where the next page begins; "0": there is none."""

    cursor: str
    refs: Sequence[GroupRef]


class EndedSample(NamedTuple):
    """One of a group's samples as the group holds it. `record` is packed; None while the sample has not ended.

    `cursor` is the result's of a group that has closed, which holds nothing else.
    """

    lines: str
    record: bytes | None
    cursor: str | None


async def read(store: Store, refs: Sequence[GroupRef]) -> list[StoredGroup | None]:
    """Each group with its spec, in one round trip; None where there is none."""
    keys = store.keys
    found = await store.read_many(
        [command for ref in refs for command in (("HGETALL", keys.group(ref)), ("GET", keys.open(ref)))]
    )
    return [_stored(ref, row, packed) for ref, row, packed in zip(refs, found[::2], found[1::2], strict=True)]


async def exists(store: Store, ref: GroupRef) -> bool:
    """True if the group is open, or published and not acknowledged."""
    return bool(await store.read("EXISTS", store.keys.group(ref)))


async def digest(store: Store, ref: GroupRef) -> str | None:
    """The digest of a group's body; None where there is no such group, or it was acknowledged."""
    [found] = await _fields(store, [ref], "digest")
    return None if found is None else found.decode()


async def due(store: Store, *, after: str = "0", limit: int, block_ms: int) -> list[Due]:
    """Groups whose verdict is due, oldest first, behind an entry; waits up to `block_ms` for the first."""
    reply = await store.wait_read("XREAD", "COUNT", limit, "BLOCK", block_ms, "STREAMS", store.keys.due, after)
    return [Due(entry.decode(), _ref(fields[1])) for entry, fields in reply[0][1]] if reply else []


async def batches_of(store: Store, refs: Sequence[GroupRef]) -> dict[GroupRef, BatchRef]:
    """The batch that each open group belongs to now; closed groups are left out."""
    rows = await _fields(store, refs, "batch")
    return {ref: BatchRef(batch.decode()) for ref, batch in zip(refs, rows, strict=True) if batch is not None}


async def versions(store: Store, refs: Sequence[GroupRef]) -> dict[GroupRef, int]:
    """The policy version that was announced when each group was drawn; groups without one are left out."""
    rows = await _fields(store, refs, "version")
    return {ref: int(version) for ref, version in zip(refs, rows, strict=True) if version is not None}


async def cursors(store: Store, refs: Sequence[GroupRef]) -> dict[GroupRef, str]:
    """The cursor of each group that has closed; open groups are left out."""
    rows = await _fields(store, refs, "cursor")
    return {ref: cursor.decode() for ref, cursor in zip(refs, rows, strict=True) if cursor}


async def jobs(store: Store, refs: Sequence[GroupRef]) -> dict[GroupRef, list[JobRef]]:
    """The jobs that each group has had, the newest last; none before it is admitted."""
    rows = await _fields(store, refs, "next")
    return {ref: [job_ref(ref, i) for i in range(int(made or 0))] for ref, made in zip(refs, rows, strict=True)}


async def specs(store: Store, refs: Sequence[GroupRef]) -> dict[GroupRef, bytes]:
    """The packed spec of each open group; closed groups are left out."""
    found = await store.read_many([("GET", store.keys.open(ref)) for ref in refs])
    return {ref: packed for ref, packed in zip(refs, found, strict=True) if packed}


async def samples(store: Store, refs: Sequence[JobRef]) -> list[EndedSample]:
    """The jobs' samples as their groups hold them."""
    asked = [(store.keys.group(group_of(ref)), job_parts(ref).sample) for ref in refs]
    rows = await store.read_many(
        [("HMGET", key, f"{_LINE}{number}", f"{_SAMPLE}{number}", "cursor") for key, number in asked]
    )
    return [
        EndedSample((lines or b"").decode(), record, cursor.decode() if cursor else None)
        for lines, record, cursor in rows
    ]


async def of_run(store: Store, run: RunRef) -> list[GroupRef]:
    """All open groups of a run, by name."""
    return sorted(_ref(name) for name in await store.read("SMEMBERS", store.keys.open_groups(run)))


async def pages(store: Store, owner: BatchRef | RunRef) -> AsyncIterator[Sequence[GroupRef]]:
    """The open groups of a batch or run in slices, in no order; one that is there throughout comes at least once."""
    cursor = "0"
    while True:
        found = await page(store, owner, cursor, count=PAGE)
        yield found.refs
        cursor = found.cursor
        if cursor == "0":
            return


async def page(store: Store, owner: BatchRef | RunRef, cursor: str, *, count: int) -> OpenPage:
    """About `count` open groups of a batch or run. Source: SSCAN, so a group may come twice."""
    if not cursor.isdigit():
        raise InvalidCursor(f"{cursor[:64]!r} is no cursor of open groups: take `next` of a page of these, or 0")
    after, names = await store.read("SSCAN", store.keys.open_groups(owner), cursor, "COUNT", count)
    return OpenPage(after.decode(), [_ref(name) for name in names])


async def waiting(store: Store, owner: BatchRef | RunRef, *, limit: int) -> list[GroupRef]:
    """The first groups of a batch's or run's reservoir."""
    return await _range(store, store.keys.reservoir(owner), limit)


async def carried(store: Store, run: RunRef, *, limit: int = 0) -> list[GroupRef]:
    """Groups that a full batch left to the run's next one, in order; `limit` 0: all of them."""
    return await _range(store, store.keys.carried(run), limit)


async def is_carried(store: Store, ref: GroupRef) -> bool:
    """True if the group is in its run's carry-over."""
    return await store.read("ZSCORE", store.keys.carried(run_of(ref)), ref) is not None


async def expired_carries(store: Store) -> list[RunRef]:
    """Runs with a carry-over that no batch took over in time."""
    found = await store.read("ZRANGEBYSCORE", store.keys.carrying, "-inf", await store.now_ms())
    return [RunRef(run.decode()) for run in found]


async def _range(store: Store, key: str, limit: int) -> list[GroupRef]:
    return [_ref(name) for name in await store.read("ZRANGE", key, 0, limit - 1)]


async def _fields(store: Store, refs: Sequence[GroupRef], field: str) -> list[bytes | None]:
    return await store.read_many([("HGET", store.keys.group(ref), field) for ref in refs])


def _ref(name: bytes) -> GroupRef:
    return GroupRef(name.decode())


def _stored(ref: GroupRef, row: Sequence[bytes], packed: bytes | None) -> StoredGroup | None:
    if not row:
        return None
    fields = {name.decode(): value for name, value in zip(row[::2], row[1::2], strict=True)}

    def number(name: str) -> int:
        return int(fields.get(name, 0))

    def text(name: str) -> str:
        return fields.get(name, b"").decode()

    return StoredGroup(
        ref=ref,
        spec=decode(packed, GroupSpec) if packed else None,
        batch=BatchRef(text("batch")),
        n=number("n"),
        jobs=number("next"),
        open=number("open"),
        wanted=number("wanted"),
        refills=number("refills"),
        carries=number("carries"),
        order=number("order") if "order" in fields else None,
        version=number("version") if "version" in fields else None,
        changes=text("changes"),
        parked="parked" in fields,
        withdrawn=text("withdrawn"),
        verdict=text("verdict"),
        cursor=text("cursor"),
        samples={int(name[2:]): value for name, value in fields.items() if name.startswith(_SAMPLE)},
        timelines={int(name[2:]): value.decode() for name, value in fields.items() if name.startswith(_LINE)},
    )
