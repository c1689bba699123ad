"""Stage streams: made with their consumer group, and read."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from prorl_mq.schema.ids import EntryId, JobRef, Token, id_at
from prorl_mq.schema.items import Claim, Entry, Lane
from prorl_mq.schema.messages import Stage
from prorl_mq.store.core import Repeat
from prorl_mq.store.layout.keys import GROUP, Keys, lane_name, lanes_of
from prorl_mq.store.scripts import script
from prorl_mq.store.server.connection import ask, ask_many, passing, patiently
from prorl_mq.store.store import Store

MISSING: Final = "NOGROUP"  # what Redis says of a stream without its consumer group


class Pending(NamedTuple):
    """An entry that a worker has read. `ref` is None where the entry was deleted since."""

    entry: EntryId
    ref: JobRef | None


async def ensure(redis: Redis, streams: Iterable[str]) -> None:
    """Makes streams and their group where they are missing; nothing that is already on a stream is skipped."""
    await script("ensure")(redis, list(streams), {"consumers": GROUP, "name": ""})


async def _ensure_listed(store: Store, stream: str) -> None:
    """As `ensure`; a lane of a node or of a task family only while it is listed."""
    lane, listed = store.keys.lane(stream), []
    name = lane.node or "" if lane.family is None else lane_name(lane)
    if name:
        listed = [store.keys.lanes if lane.family is None else store.keys.family_lanes]
    await script("ensure")(store.redis, [stream, *listed], {"consumers": GROUP, "name": name})


def shared(keys: Keys) -> list[str]:
    """The streams that every deployment has."""
    plain = [Lane(stage) for stage in Stage]
    return list(dict.fromkeys(keys.stage(*lane) for lane in (*plain, *(each.ahead for each in plain))))


async def read(
    redis: Redis, consumer: str, streams: list[str], *, count: int, block_ms: int | None
) -> dict[str, list[Entry]]:
    """New entries by stream, at most `count` from each. `block_ms` None does not wait; source: XREADGROUP."""
    wait = () if block_ms is None else ("BLOCK", block_ms)
    command = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, *wait, "STREAMS", *streams)
    return _entries(await ask(redis, *command, *(">" for _ in streams)))


async def read_again(redis: Redis, consumer: str, streams: list[str], *, count: int) -> dict[str, list[Entry]]:
    """Entries that this consumer has read and not committed, oldest first, at most `count` from each stream."""
    zeros = ["0"] * len(streams)
    return _entries(
        await ask(redis, "XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, "STREAMS", *streams, *zeros)
    )


def _entries(reply: Sequence[Any] | None) -> dict[str, list[Entry]]:
    """By stream. An entry that was deleted while it was pending has no fields: nothing stands behind it."""
    return {
        stream.decode(): [read_entry(entry, fields) for entry, fields in entries if fields]
        for stream, entries in reply or ()
    }


def read_entry(entry: bytes, fields: Sequence[bytes]) -> Entry:
    """An entry as `put` of `shared/entry.lua` writes it; of any other, such as an older release's, the job's name."""
    ref, name = JobRef(fields[1].decode(errors="replace")), EntryId(entry.decode())
    try:
        token, *numbers, trajectory, length, carry = fields[3].split(b"\t", 7)
        attempts, deaths, releases, deadline_ms = map(int, numbers)
        claim = Claim(
            "read", Token(token.decode()), attempts, deaths, releases, deadline_ms, carry, trajectory.decode()
        )
        told = fields[5] if len(fields) > 5 else None
        return Entry(ref, name, claim, int(length) > len(carry), told)
    except (IndexError, ValueError):
        return Entry(ref, name)


async def prepare(store: Store) -> None:
    """Makes the streams that every deployment has, through an outage of Redis. A primary takes nothing while a replica
    is away: a process begins all the same where all are there.
    """
    names = shared(store.keys)

    async def attempt() -> None:
        try:
            await ensure(store.redis, names)
        except ResponseError as error:
            if not passing(error) or not await _made(store.redis, names):
                raise

    await patiently(attempt, outage_ms=store.outage_ms)


async def _made(redis: Redis, names: Sequence[str]) -> bool:
    """True if streams have their group, which none of ours has beside another one."""
    try:
        return all(await ask_many(redis, [("XINFO", "GROUPS", name) for name in names]))
    except ResponseError:  # there is no such stream
        return False


async def lanes(store: Store) -> dict[str, Lane]:
    """The streams of nodes, each with its lane."""
    nodes = [node.decode() for node in await store.read("SMEMBERS", store.keys.lanes)]
    return {store.keys.stage(*lane): lane for node in nodes for lane in lanes_of(node)}


async def length(store: Store, stream: str) -> int:
    """Entries of a stream, queued and leased."""
    return int(await store.read("XLEN", stream))


async def first(store: Store, stream: str, *, limit: int) -> list[JobRef]:
    """The jobs of a stream's oldest entries, read by a worker or not."""
    rows = await store.read("XRANGE", stream, "-", "+", "COUNT", limit)
    return [JobRef(fields[1].decode()) for _, fields in rows]


async def read_long_ago(store: Store, stream: str, *, idle_ms: int, start: str, limit: int) -> list[Pending]:
    """Entries that a worker read at least `idle_ms` ago and that are still there for it, from an id on. A missing one
    is made: a worker of an earlier release makes its node's lane alone, without the one in front.
    """
    try:
        rows = await store.read("XPENDING", stream, GROUP, "IDLE", idle_ms, start, "+", limit)
    except ResponseError as error:
        if not str(error).startswith(MISSING):
            raise
        await _ensure_listed(store, stream)
        return []
    return await _pending(store, stream, rows)


async def left_by(store: Store, stream: str, worker: str, *, limit: int) -> list[Pending]:
    """Entries that a worker has read and that are still there for it, the oldest first."""
    return await _pending(store, stream, await store.read("XPENDING", stream, GROUP, "-", "+", limit, worker))


async def read_by(store: Store, worker: str, names: Iterable[str]) -> list[str]:
    """Those of the stage streams that a worker reads, by its heartbeat; all of them if that has gone."""
    stage, node = await store.read("HMGET", store.keys.worker(worker), "stage", "node")
    if stage is None or node is None:
        return list(names)
    lanes = {name: store.keys.lane(name) for name in names}
    near = {None, node.decode()}
    return [name for name, lane in lanes.items() if lane.stage == stage.decode() and lane.node in near]


async def _pending(store: Store, stream: str, rows: Sequence[Any]) -> list[Pending]:
    bodies = await store.read_many([("XRANGE", stream, row[0], row[0]) for row in rows])
    return [
        Pending(EntryId(row[0].decode()), JobRef(body[0][1][1].decode()) if body else None)
        for row, body in zip(rows, bodies, strict=True)
    ]


async def drop(store: Store, stream: str, entries: Sequence[EntryId]) -> None:
    """Removes entries of a stage stream behind which no job stands."""
    if entries:
        await store.write_many([("XACK", stream, GROUP, *entries), ("XDEL", stream, *entries)])


async def trim_cancels(store: Store, *, older_than_ms: int) -> None:
    """Removes messages about cancelled jobs that every worker has had time to read."""
    newest = await store.read("XREVRANGE", store.keys.cancels, "+", "-", "COUNT", 1)
    if newest:
        oldest = id_at(older_than_ms, newest[0][0].decode())
        await store.write("XTRIM", store.keys.cancels, "MINID", oldest, repeat=Repeat.SAME)
