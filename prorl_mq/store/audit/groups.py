"""Groups, batches and the collections that name them, as an audit sees them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import BatchRef, GroupRef, RunRef, job_ref, run_of
from prorl_mq.schema.items import GroupSpec
from prorl_mq.schema.messages import SampleRecord
from prorl_mq.schema.task_schema import Schema
from prorl_mq.store.audit.reads import Key, Reads, entries, number, pages, texts

FIELDS: Final = (
    "batch", "n", "next", "wanted", "open", "refills", "order", "parked", "withdrawn", "changes", "cursor", "digest",
)  # fmt: skip
BATCH_FIELDS: Final = ("plan", "phase", "target", "n:accepted", "closed", "stored", "joined", "cursor")
PLACES: Final = 12  # reads of where a group waits


class JobState(NamedTuple):
    """A job as its group sees it."""

    state: str
    deaths: int
    progress: int  # deaths that logged turns have made good


class GroupFacts(NamedTuple):
    """One group with all places in which it may wait, and its jobs."""

    ref: GroupRef
    key: str
    ttl_ms: int
    fields: Mapping[str, str]
    spec: GroupSpec | None
    listed: bool  # among the run's open groups
    of_batch: bool  # among the batch's open groups
    in_backlog: bool
    in_reservoir: bool
    in_play: bool  # drawn for its batch, or carried over
    asleep: bool  # parked in its batch's play, and not among those that its batch wakes
    due: bool
    jobs: Sequence[JobState | None]  # that it has had; None: there is no such job
    samples: Mapping[int, SampleRecord]
    published: bool  # its cursor leads to an entry of the results
    batch_there: bool  # there is a batch of the name that it gives
    has_turns: bool  # of another job, that a forked group begins with
    sealed_names: frozenset[str]  # payload fields of its task family that only EVAL may see

    def number(self, name: str) -> int:
        return int(self.fields.get(name) or 0)

    def text(self, name: str) -> str:
        return self.fields.get(name, "")


class BatchFacts(NamedTuple):
    """One batch. `listed`: among the DAPO batches that are not closed. `open`: it has open groups."""

    ref: BatchRef
    key: str
    ttl_ms: int
    fields: Mapping[str, str]
    listed: bool
    open: bool

    def number(self, name: str) -> int:
        return int(self.fields.get(name) or 0)

    def text(self, name: str) -> str:
        return self.fields.get(name, "")


class Membership(NamedTuple):
    """A group that a collection names, with what the group says. Empty `fields`: there is no open group."""

    key: Key
    ref: GroupRef
    fields: Mapping[str, str]


async def due(reads: Reads) -> set[str]:
    """Every group that the stream of due groups names."""
    found: set[str] = set()
    async for page in entries(reads, reads.keys.due):
        found |= {fields[1].decode() for _, fields in page}
    return found


async def of_keys(
    reads: Reads, keys: Sequence[Key], due_now: set[str], schemas: Mapping[str, Schema]
) -> list[GroupFacts]:
    """The groups of some keys."""
    refs = [GroupRef(key.rest) for key in keys]
    rows = await reads.read_many([("HMGET", key.name, *FIELDS) for key in keys])
    fields = [texts(FIELDS, row) for row in rows]
    places = await reads.read_many(
        [command for ref, mine in zip(refs, fields, strict=True) for command in _places(reads, ref, mine)]
    )
    inside = await _inside(reads, refs, fields)
    return [
        _facts(key, ref, mine, places[at : at + PLACES], jobs, samples, ref in due_now, schemas)
        for at, key, ref, mine, (jobs, samples) in zip(
            range(0, len(places), PLACES), keys, refs, fields, inside, strict=True
        )
        if mine
    ]


def _places(reads: Reads, ref: GroupRef, fields: Mapping[str, str]) -> list[tuple[Any, ...]]:
    keys, run, batch = reads.keys, run_of(ref), BatchRef(fields.get("batch", ""))
    cursor = fields.get("cursor", "0")
    return [
        ("GET", keys.open(ref)),
        ("SISMEMBER", keys.open_groups(run), ref),
        ("SISMEMBER", keys.open_groups(batch), ref),
        ("ZSCORE", keys.backlog(run), ref),
        ("ZSCORE", keys.reservoir(run), ref),
        ("ZSCORE", keys.reservoir(batch), ref),
        ("ZSCORE", keys.drawn(batch), ref),
        ("ZSCORE", keys.parked(batch), ref),
        ("ZSCORE", keys.carried(run), ref),
        ("XRANGE", keys.results(run), cursor, cursor),
        ("EXISTS", keys.batch(batch)),
        ("HEXISTS", keys.fork(ref), "turns"),
    ]


async def _inside(
    reads: Reads, refs: Sequence[GroupRef], fields: Sequence[Mapping[str, str]]
) -> list[tuple[list[JobState | None], dict[int, SampleRecord]]]:
    """The jobs of each open group, and the records of those that have ended."""
    made = [0 if "cursor" in mine else int(mine.get("next") or 0) for mine in fields]
    asked: list[tuple[Any, ...]] = []
    for ref, count in zip(refs, made, strict=True):
        asked += [
            ("HMGET", reads.keys.job(job_ref(ref, index)), "state", "deaths", "progress") for index in range(count)
        ]
        asked += [("HMGET", reads.keys.group(ref), *(f"s:{index}" for index in range(count)))] if count else []
    rows = iter(await reads.read_many(asked))
    found = []
    for count in made:
        states = [next(rows) for _ in range(count)]
        records = next(rows) if count else []
        jobs = [
            None if state is None else JobState(state.decode(), *(int(each or 0) for each in counts))
            for state, *counts in states
        ]
        found.append((jobs, {at: decode(each, SampleRecord) for at, each in enumerate(records) if each}))
    return found


def _facts(
    key: Key,
    ref: GroupRef,
    fields: Mapping[str, str],
    places: Sequence[Any],
    jobs: list[JobState | None],
    samples: dict[int, SampleRecord],
    is_due: bool,
    schemas: Mapping[str, Schema],
) -> GroupFacts:
    packed, listed, of_batch, backlog, in_runs, in_batchs, drawn, parked, carried, published, there, turns = places
    spec = decode(packed, GroupSpec) if packed else None
    schema = schemas.get(spec.data_source) if spec else None
    return GroupFacts(
        ref=ref,
        key=key.name,
        ttl_ms=key.ttl_ms,
        fields=fields,
        spec=spec,
        listed=bool(listed),
        of_batch=bool(of_batch),
        in_backlog=backlog is not None,
        in_reservoir=in_runs is not None or in_batchs is not None,
        in_play=drawn is not None or carried is not None,
        asleep="parked" in fields and drawn is not None and parked is None,
        due=is_due,
        jobs=jobs,
        samples=samples,
        published=bool(published),
        batch_there=bool(there),
        has_turns=bool(turns),
        sealed_names=frozenset(schema.sealed) if schema else frozenset(),
    )


async def batches(reads: Reads, keys: Sequence[Key]) -> list[BatchFacts]:
    """The batches of some keys."""
    rows = await reads.read_many(
        [
            command
            for key in keys
            for command in (
                ("HMGET", key.name, *BATCH_FIELDS),
                ("ZSCORE", reads.keys.dapo, key.rest),
                ("EXISTS", reads.keys.open_groups(BatchRef(key.rest))),
            )
        ]
    )
    return [
        BatchFacts(BatchRef(key.rest), key.name, key.ttl_ms, texts(BATCH_FIELDS, row), listed is not None, bool(groups))
        for key, row, listed, groups in zip(keys, rows[::3], rows[1::3], rows[2::3], strict=True)
    ]


async def members(reads: Reads, key: Key) -> AsyncIterator[list[Membership]]:
    """The groups that a set or sorted set names, in pages."""
    head, step = (("SSCAN", key.name), 1) if key.type == "set" else (("ZSCAN", key.name), 2)
    async for page in pages(reads, head):
        refs = [GroupRef(name.decode(errors="replace")) for name in page[::step]]
        rows = await reads.read_many([("HMGET", reads.keys.group(ref), *FIELDS) for ref in refs])
        yield [Membership(key, ref, texts(FIELDS, row)) for ref, row in zip(refs, rows, strict=True)]


async def begun(reads: Reads, run: RunRef) -> int:
    """Number of open groups of a run that have had jobs."""
    count = 0
    async for page in pages(reads, ("SSCAN", reads.keys.open_groups(run))):
        rows = await reads.read_many([("HGET", reads.keys.group(GroupRef(ref.decode())), "next") for ref in page])
        count += sum(int(made or 0) > 0 for made in rows)
    return count


async def carries(reads: Reads, run: RunRef) -> bool:
    """True if the run's carry-over has a time at which it ends."""
    [score] = await reads.read_many([("ZSCORE", reads.keys.carrying, run)])
    return number(score) is not None


async def schemas(reads: Reads) -> dict[str, Schema]:
    """Schemas that workers have announced, by data source."""
    [row] = await reads.read_many([("HGETALL", reads.keys.schemas)])
    return {name.decode(): decode(packed, Schema) for name, packed in zip(row[::2], row[1::2], strict=True)}
