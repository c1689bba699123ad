"""The groups of a run that have no record yet, and what groups hold of their samples."""

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from prorl_mq.schema.ids import GroupRef, JobRef, RunRef, group_of, job_parts, job_ref
from prorl_mq.store.store import Store

PAGE: Final = 256


class EndedSample(NamedTuple):
    """What a group holds of one of its samples. `record` is packed; None while the sample has not ended.

    `cursor` is the result's of a group that has closed, which holds nothing else.
    """

    lines: str
    record: bytes | None
    cursor: str | None


async def exists(store: Store, group: GroupRef) -> bool:
    """Whether a group waits, runs, or has a result that is not acknowledged."""
    return bool(await store.read("EXISTS", store.keys.group(group)))


async def of_run(store: Store, run: RunRef) -> list[GroupRef]:
    """All of a run's, by name."""
    return sorted(GroupRef(ref.decode()) for ref in await store.read("SMEMBERS", store.keys.open_groups(run)))


async def pages(store: Store, run: RunRef) -> AsyncIterator[list[GroupRef]]:
    """A run's in slices, in no order; one that is there throughout comes at least once. Source: SSCAN."""
    cursor = b"0"
    while True:
        cursor, page = await store.read("SSCAN", store.keys.open_groups(run), cursor, "COUNT", PAGE)
        yield [GroupRef(ref.decode()) for ref in page]
        if cursor == b"0":
            return


async def jobs(store: Store, groups: Sequence[GroupRef]) -> dict[GroupRef, list[JobRef]]:
    """The jobs that each group has had, the newest last; none before it is admitted."""
    made = await store.read_many([("HGET", store.keys.group(group), "next") for group in groups])
    return {
        group: [job_ref(group, index) for index in range(int(count or 0))]
        for group, count in zip(groups, made, strict=True)
    }


async def samples(store: Store, refs: Sequence[JobRef]) -> list[EndedSample]:
    """What the jobs' groups hold of them."""
    asked = [(store.keys.group(group_of(ref)), job_parts(ref).sample) for ref in refs]
    rows = await store.read_many([("HMGET", key, f"t:{number}", f"s:{number}", "cursor") for key, number in asked])
    return [EndedSample((lines or b"").decode(), record, _text(cursor)) for lines, record, cursor in rows]


async def cursors(store: Store, groups: Sequence[GroupRef]) -> dict[GroupRef, str]:
    """The cursor of each group that has closed."""
    found = await store.read_many([("HGET", store.keys.group(group), "cursor") for group in groups])
    return {group: cursor.decode() for group, cursor in zip(groups, found, strict=True) if cursor}


async def specs(store: Store, groups: Sequence[GroupRef]) -> dict[GroupRef, bytes]:
    """The packed spec of each group that has not closed."""
    found = await store.read_many([("GET", store.keys.open(group)) for group in groups])
    return {group: packed for group, packed in zip(groups, found, strict=True) if packed}


def _text(value: bytes | None) -> str | None:
    return value.decode() if value else None
