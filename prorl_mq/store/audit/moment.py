"""All jobs in flight at one moment, with the counts that are kept of them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef, JobRef, group_of, run_of
from prorl_mq.schema.items import GroupSpec
from prorl_mq.schema.lifecycle import State
from prorl_mq.store.audit.reads import Reads, number

AT_MOST: Final = 4_096  # jobs that a busy server reads between two other commands: some milliseconds
TRIES: Final = 50
FIELDS: Final = ("state", "backend", "bytes")


class Flying(NamedTuple):
    """One job that has not ended. `backend` is empty where it holds none."""

    ref: JobRef
    pool: str
    backend: str
    bytes: int  # that wait for EVAL


class Moment(NamedTuple):
    """State between two commands of Redis."""

    jobs: Sequence[Flying]
    in_flight: Mapping[str, int]  # by run
    eval_bytes: int
    backends: Mapping[tuple[str, str], int]  # jobs on each, by pool and address


async def look(reads: Reads, *, at_most: int | None = AT_MOST) -> Moment | None:
    """None if more jobs are in flight than may be read at once, or if they never stood still for one read."""
    pools = await _pools(reads)
    known: dict[GroupRef, str] = {}
    for _ in range(TRIES):
        refs = await _in_flight(reads, at_most)
        if refs is None:
            return None
        await _learn(reads, {group_of(ref) for ref in refs}, known)
        moment = await _once(reads, refs, pools, known)
        if moment is not None:
            return moment
    return None


async def _in_flight(reads: Reads, at_most: int | None) -> list[JobRef] | None:
    """Jobs with a deadline, with a lease, or in a pause."""
    keys = reads.keys
    counts = await reads.read_many([("ZCARD", timers) for timers in (keys.deadlines, keys.leases, keys.paused)])
    if at_most is not None and sum(map(int, counts)) > 2 * at_most:
        return None
    rows = await reads.read_many(_timers(reads))
    return sorted({JobRef(name.decode()) for row in rows for name in row})


async def _once(
    reads: Reads, refs: Sequence[JobRef], pools: Sequence[str], known: Mapping[GroupRef, str]
) -> Moment | None:
    """The jobs with their counts; None if others have come meanwhile."""
    keys = reads.keys
    heaps = [("ZRANGE", keys.pool(pool), 0, -1, "WITHSCORES") for pool in pools]
    asked = [("HMGET", keys.job(ref), *FIELDS) for ref in refs]
    head = [*_timers(reads), ("HGETALL", keys.in_flight), ("GET", keys.eval_bytes)]
    deadlines, leases, paused, counts, eval_bytes, *rows = await reads.read_at_once([*head, *heaps, *asked])
    if not {JobRef(name.decode()) for name in (*deadlines, *leases, *paused)} <= set(refs):
        return None
    return Moment(
        jobs=list(_flying(refs, rows[len(heaps) :], known)),
        in_flight=dict(_pairs(counts)),
        eval_bytes=int(eval_bytes or 0),
        backends={
            (pool, address): count for pool, row in zip(pools, rows, strict=False) for address, count in _pairs(row)
        },
    )


def _flying(
    refs: Sequence[JobRef], rows: Sequence[Sequence[bytes | None]], known: Mapping[GroupRef, str]
) -> Iterable[Flying]:
    for ref, (state, backend, size) in zip(refs, rows, strict=True):
        if state is not None and state.decode() != State.DONE:
            yield Flying(ref, known.get(group_of(ref), ""), (backend or b"").decode(), int(size or 0))


def _timers(reads: Reads) -> list[tuple[Any, ...]]:
    keys = reads.keys
    return [("ZRANGE", timers, 0, -1) for timers in (keys.deadlines, keys.leases, keys.paused)]


def _pairs(row: Sequence[bytes]) -> Iterable[tuple[str, int]]:
    return ((name.decode(), number(count) or 0) for name, count in zip(row[::2], row[1::2], strict=True))


async def _pools(reads: Reads) -> list[str]:
    """Names of the pools."""
    [found] = await reads.read_many([("SMEMBERS", reads.keys.pools)])
    return sorted(pool.decode() for pool in found)


async def _learn(reads: Reads, groups: Iterable[GroupRef], known: dict[GroupRef, str]) -> None:
    """Adds the pool of each group that is not known yet."""
    new = [ref for ref in groups if ref not in known]
    packed = await reads.read_many([("GET", reads.keys.open(ref)) for ref in new])
    known |= {ref: decode(each, GroupSpec).pool for ref, each in zip(new, packed, strict=True) if each}


def by_run(jobs: Iterable[Flying]) -> dict[str, int]:
    """Number of the jobs of each run."""
    counts: dict[str, int] = defaultdict(int)
    for job in jobs:
        counts[run_of(group_of(job.ref))] += 1
    return dict(counts)
