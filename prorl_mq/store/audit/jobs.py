"""Jobs and stage streams as an audit sees them: each job with all places in which it may be."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from prorl_mq.schema.ids import JobRef, group_of
from prorl_mq.store.audit.reads import Key, Reads, entries, number, texts
from prorl_mq.store.layout.keys import GROUP, lanes_of, named_lane
from prorl_mq.store.streams import MISSING, shared

FIELDS: Final = (
    "state", "stage", "token", "entry", "stream", "owner", "claimed", "until", "deadline", "ending", "outcome",
    "backend", "trajectory", "exported", "saved_in",
)  # fmt: skip
JOB_FIELD: Final = b"j"


class JobFacts(NamedTuple):
    """One job. Scores are in ms, None where the job is not there."""

    ref: JobRef
    key: str
    ttl_ms: int
    fields: Mapping[str, str]
    lease: int | None
    delayed: int | None
    deadline: int | None
    paused: int | None
    at_entry: str  # the job that its stream has under its entry; empty: none
    consumer: str  # the worker that has read that entry; empty: none
    group: str  # open, closed or gone
    epoch: Mapping[str, str]  # number, server, tokens; read after the job

    def text(self, name: str) -> str:
        return self.fields.get(name, "")

    def ms(self, name: str) -> int:
        return int(self.fields.get(name) or 0)


class EntryFacts(NamedTuple):
    """One entry of a stage stream, with what the job that it names says of its own place."""

    stream: str
    entry: str
    ref: str
    job_entry: str | None  # None: there is no such job
    job_stream: str


async def of_keys(reads: Reads, keys: Sequence[Key], streams: frozenset[str]) -> list[JobFacts]:
    """The jobs of some keys. `streams` are those that have the workers' consumer group."""
    layout, refs = reads.keys, [JobRef(key.rest) for key in keys]
    rows = await reads.read_many(
        [
            command
            for key, ref in zip(keys, refs, strict=True)
            for command in (
                ("HMGET", key.name, *FIELDS),
                ("ZSCORE", layout.leases, ref),
                ("ZSCORE", layout.delayed, ref),
                ("ZSCORE", layout.deadlines, ref),
                ("ZSCORE", layout.paused, ref),
                ("HMGET", layout.group(group_of(ref)), "digest", "cursor"),
            )
        ]
    )
    fields = [texts(FIELDS, row) for row in rows[::6]]
    places = await _places(reads, fields, streams)
    [about] = await reads.read_many([("HMGET", layout.epoch, "number", "server", "tokens")])
    epoch = texts(("number", "server", "tokens"), about)
    return [
        _facts(key, ref, mine, rows[at + 1 : at + 6], place, epoch)
        for at, key, ref, mine, place in zip(range(0, len(rows), 6), keys, refs, fields, places, strict=True)
        if mine
    ]


def _facts(
    key: Key,
    ref: JobRef,
    fields: Mapping[str, str],
    rows: Sequence[Any],
    place: tuple[str, str],
    epoch: Mapping[str, str],
) -> JobFacts:
    lease, delayed, deadline, paused, group = rows
    return JobFacts(
        ref=ref,
        key=key.name,
        ttl_ms=key.ttl_ms,
        fields=fields,
        lease=number(lease),
        delayed=number(delayed),
        deadline=number(deadline),
        paused=number(paused),
        at_entry=place[0],
        consumer=place[1],
        group=_group(*group),
        epoch=epoch,
    )


async def _places(reads: Reads, jobs: Sequence[Mapping[str, str]], streams: frozenset[str]) -> list[tuple[str, str]]:
    """Of each job what lies at its entry, and who has read that."""
    commands: list[tuple[Any, ...]] = []
    for job in jobs:
        if job.get("entry") and job.get("stream") in streams:
            entry, stream = job["entry"], job["stream"]
            commands += [("XRANGE", stream, entry, entry), ("XPENDING", stream, GROUP, entry, entry, 1)]
    try:
        rows = iter(await reads.read_many(commands))
    except ResponseError as error:
        if not closed(error):
            raise
        return await _places(reads, jobs, await stage_streams(reads))
    found = []
    for job in jobs:
        if job.get("entry") and job.get("stream") in streams:
            bodies, pending = next(rows), next(rows)
            found.append((bodies[0][1][1].decode() if bodies else "", pending[0][1].decode() if pending else ""))
        else:
            found.append(("", ""))
    return found


async def on_stream(reads: Reads, stream: str) -> AsyncIterator[list[EntryFacts]]:
    """The entries of a stage stream in pages."""
    async for page in entries(reads, stream):
        named = [fields[1].decode() if fields[0] == JOB_FIELD else "" for _, fields in page]
        rows = await reads.read_many([("HMGET", reads.keys.job(JobRef(ref)), "entry", "stream") for ref in named])
        yield [
            EntryFacts(stream, entry, ref, row[0] and row[0].decode(), (row[1] or b"").decode())
            for (entry, _), ref, row in zip(page, named, rows, strict=True)
        ]


async def unread_nothing(reads: Reads, stream: str) -> AsyncIterator[list[str]]:
    """Pending entries of a stage stream that were deleted: nobody can commit them. Source: XPENDING."""
    start = "-"
    while True:
        try:
            [rows] = await reads.read_many([("XPENDING", stream, GROUP, start, "+", 256)])
        except ResponseError as error:
            if not closed(error):
                raise
            return
        bodies = await reads.read_many([("XRANGE", stream, row[0], row[0]) for row in rows])
        yield [row[0].decode() for row, body in zip(rows, bodies, strict=True) if not body]
        if len(rows) < 256:
            return
        start = f"({rows[-1][0].decode()}"


async def stage_streams(reads: Reads) -> frozenset[str]:
    """The stages and the lanes of known nodes and families, where the workers' consumer group reads them."""
    layout = reads.keys
    nodes, lanes = await reads.read_many([("SMEMBERS", layout.lanes), ("SMEMBERS", layout.family_lanes)])
    streams = shared(layout)
    streams += [layout.stage(*lane) for node in nodes for lane in lanes_of(node.decode())]
    streams += [layout.stage(*named_lane(lane.decode())) for lane in lanes]
    there = await reads.read_many([("EXISTS", stream) for stream in streams])
    made = [stream for stream, exists in zip(streams, there, strict=True) if exists]
    try:
        about = await reads.read_many([("XINFO", "GROUPS", stream) for stream in made])
    except ResponseError as error:
        if not closed(error):
            raise
        return await stage_streams(reads)
    return frozenset(
        stream for stream, groups in zip(made, about, strict=True) if any(GROUP.encode() in info for info in groups)
    )


def closed(error: ResponseError) -> bool:
    """True if a stream that was there has gone since: the last worker of a node has left, and its lane with it."""
    return any(text in str(error) for text in (MISSING, "no such key"))


def _group(digest: bytes | None, cursor: bytes | None) -> str:
    return "gone" if digest is None else "closed" if cursor else "open"
