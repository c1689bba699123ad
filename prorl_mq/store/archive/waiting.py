"""Acknowledged groups that wait for the archive, and the archive's state as every process sees it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from prorl_mq.schema.ids import RunRef
from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store

ARCHIVED: Final = "archived"  # counters of the state: what has become of groups
PASSED_OVER: Final = "passed_over"
UNWANTED: Final = "unwanted"
INCOMPLETE: Final = "incomplete"
_NUMBERS: Final = ("until_ms", "most_bytes", "groups", "bytes", ARCHIVED, PASSED_OVER, UNWANTED, INCOMPLETE)


class WaitingGroup(NamedTuple):
    """One entry. `record` is a packed `GroupRecord`; `bytes` are those of the record and its trajectories."""

    entry: str
    record: bytes
    bytes: int


class ArchiveState(NamedTuple):
    """`until_ms`: until when acknowledged groups are kept for the archive; 0: there is none.

    The counts after `bytes`, which wait, are of everything so far. `fault` says why nothing can be written; empty: it
    can.
    """

    fault: str
    until_ms: int
    most_bytes: int  # that may wait
    groups: int
    bytes: int
    archived: int
    passed_over: int  # for want of room, or since they could not be written in time
    unwanted: int  # of runs that are not archived
    incomplete: int  # archived without a trajectory that could not be read


async def state(store: Store) -> ArchiveState:
    """The state at this moment."""
    row = await store.read("HMGET", store.keys.archive_state, "fault", *_NUMBERS)
    fault, numbers = (row[0] or b"").decode(), [int(number or 0) for number in row[1:]]
    return ArchiveState(fault, *numbers)


async def publish(store: Store, *, until_ms: int, most_bytes: int, fault: str) -> None:
    """Says until when acknowledged groups are kept, how many bytes may wait, and what is wrong."""
    about = ("until_ms", until_ms, "most_bytes", most_bytes, "fault", fault)
    await store.write("HSET", store.keys.archive_state, *about, repeat=Repeat.SAME)


async def count_incomplete(store: Store, groups: int) -> None:
    """Counts groups that were archived without a trajectory. A count that is lost is lost."""
    await store.write("HINCRBY", store.keys.archive_state, INCOMPLETE, groups, repeat=Repeat.ONCE)


async def runs(store: Store) -> dict[RunRef, int]:
    """Runs with groups that wait, those that have waited longest first, and since when, in ms."""
    row = await store.read("ZRANGE", store.keys.archiving, 0, -1, "WITHSCORES")
    return {RunRef(name.decode()): int(float(since)) for name, since in zip(row[::2], row[1::2], strict=True)}


async def length(store: Store, run: RunRef) -> int:
    """Number of a run's groups that wait."""
    return int(await store.read("XLEN", store.keys.archive(run)))


async def is_idle(store: Store, run: RunRef) -> bool:
    """True if no other group of the run is to be acknowledged soon: none runs, or waits for that."""
    return not await store.read("HEXISTS", store.keys.unacked, run)


async def page(store: Store, run: RunRef, *, limit: int) -> Sequence[WaitingGroup]:
    """The groups that have waited longest."""
    rows = await store.read("XRANGE", store.keys.archive(run), "-", "+", "COUNT", limit)
    return [WaitingGroup(entry.decode(), fields[1], int(fields[3])) for entry, fields in rows]
