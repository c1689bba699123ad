"""Reads and writes of a worker's process beside the verbs of its jobs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import GroupRef, JobRef
from prorl_mq.schema.items import Entry, GroupSpec
from prorl_mq.schema.messages import Outcome
from prorl_mq.schema.task_schema import Schema
from prorl_mq.store import streams
from prorl_mq.store.core import Raw
from prorl_mq.store.families import digest_of, lengths
from prorl_mq.store.layout.keys import GROUP, Keys, lanes_of
from prorl_mq.store.server.connection import ask, patiently
from prorl_mq.store.store import Store, renewal

CANCELS_BLOCK_MS: Final = 5_000
GONE_MS: Final = -1  # a heartbeat that holds until a moment ago
NOWHERE: Final = "0"


class StopNotice(NamedTuple):
    """A message that a job must stop: whose lease it means, and how the job ends."""

    ref: JobRef
    token: str
    ending: str
    owner: str


class Specs(NamedTuple):
    """A group as a worker needs it. `sealed` is packed; empty where it was not asked for."""

    spec: GroupSpec
    sealed: bytes


async def enroll(
    store: Store, schemas: Mapping[str, Schema], lane: str | None, families: Collection[str] | None = None
) -> str:
    """Announces a worker's task families, and its node if that has a `lane`, whose streams are made: `enrolled`.

    `families`: those that it takes now; None: all of them.
    """
    raw, taken = Raw(), sorted(schemas if families is None else families)
    items = [(source, raw.put(msgspec.msgpack.encode(schema))) for source, schema in schemas.items()]
    spelt = raw.put(msgspec.msgpack.encode(taken)) if schemas else 0
    names = [store.keys.schemas, store.keys.lanes, store.keys.families]
    if lane:
        names += (store.keys.stage(*each) for each in lanes_of(lane))
    arguments = {"consumers": GROUP, "node": lane or "", "digest": digest_of(taken), "families": spelt, "items": items}
    reply: bytes = await store.call("enroll", names, arguments, *raw)
    return reply.decode()


async def specs(store: Store, groups: Sequence[GroupRef], *, sealed: bool) -> list[Specs | None]:
    """Of groups, with their secrets where `sealed`; None for one that is settled."""
    keys = store.keys
    secrets = [keys.sealed(ref) for ref in groups] if sealed else []
    found = await store.read("MGET", *(keys.open(ref) for ref in groups), *secrets)
    hidden = found[len(groups) :] or [b""] * len(groups)
    return [
        None if packed is None else Specs(decode(packed, GroupSpec), secret or b"")
        for packed, secret in zip(found, hidden, strict=False)
    ]


async def ending(store: Store, ref: JobRef) -> str:
    """The way in which a job that is told to stop must end."""
    found = await store.read("HGET", store.keys.job(ref), "ending")
    return found.decode() if found else Outcome.CANCELLED


async def eval_bytes(store: Store) -> int:
    """Bytes that wait for EVAL."""
    return int(await store.read("GET", store.keys.eval_bytes) or 0)


async def lane_length(store: Store, node: str) -> int:
    """Entries on a node's lanes, read ones included."""
    lanes = [*lanes_of(node), *(each for each in store.family_lanes if each.node == node)]
    return sum((await lengths(store, lanes)).values())


async def sign_off(store: Store, names: Sequence[str]) -> str:
    """Says that this worker is gone, so that nobody waits for its lease: `forgotten`, or `pending`.

    `names`: the streams that it read. A worker that leaves entries behind is forgotten by the reaper, after those.
    """
    last = renewal(store.keys, store.name, {"slots": 0}, [], lease_ms=GONE_MS)
    await store.call("renew", last.keys, last.arguments)
    return await store.forget(store.name, names)


async def pending(store: Store, stream: str, *, idle_ms: int, count: int) -> list[str]:
    """Ids of at most `count` entries that this worker read at least so long ago, and has not committed."""
    try:
        rows = await store.read("XPENDING", stream, GROUP, "IDLE", idle_ms, "-", "+", count, store.name)
    except ResponseError as error:
        if str(error).startswith(streams.MISSING):
            return []
        raise
    return [row[0].decode() for row in rows]


class Reader:
    """The reads of one worker (`consumer`), on a connection of their own. Each is sent once."""

    def __init__(self, redis: Redis, consumer: str) -> None:
        self._redis = redis
        self._consumer = consumer
        self._seen: dict[str, bytes] = {}  # by stream, an entry that was there before the last look at it

    async def open(self, names: Sequence[str]) -> None:
        """Makes streams that are missing."""
        await streams.ensure(self._redis, names)

    async def read(self, names: list[str], *, count: int, block_ms: int | None) -> dict[str, list[Entry]] | None:
        """New entries by stream (`streams.read`); None where a stream is missing."""
        try:
            return await streams.read(self._redis, self._consumer, names, count=count, block_ms=block_ms)
        except ResponseError as error:
            if str(error).startswith(streams.MISSING):
                return None
            raise

    async def news(self, names: list[str], *, block_ms: int) -> bool:
        """Waits until something is added to one of the streams, and takes none of it. True where the caller must look
        at them all: something came, or one is awaited for the first time.
        """
        came = [name for name in names if name not in self._seen]
        if not came:
            after = [self._seen[name] for name in names]
            words = ("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS")
            came = [name.decode() for name, _ in await ask(self._redis, *words, *names, *after) or ()]
        for name in came:
            last = await ask(self._redis, "XREVRANGE", name, "+", "-", "COUNT", 1)
            self._seen[name] = last[0][0] if last else NOWHERE.encode()
        return bool(came)

    async def again(self, names: list[str], *, count: int) -> dict[str, list[Entry]]:
        """Entries that this worker has read and not committed; none of a stream that is missing."""
        try:
            return await streams.read_again(self._redis, self._consumer, names, count=count)
        except ResponseError as error:
            if str(error).startswith(streams.MISSING):
                return {}
            raise


class Cancels:
    """The cancel stream, from where it stood when the worker started: what lies before does not concern it.

    A worker that was away for longer than the stream is kept holds nothing any more, and `renew` repeats the news.
    """

    def __init__(self, redis: Redis, keys: Keys, *, outage_ms: int) -> None:
        self._redis = redis
        self._key = keys.cancels
        self._outage_ms = outage_ms
        self._after = NOWHERE

    async def prepare(self) -> None:
        """Notes where the stream stands."""
        last = await ask(self._redis, "XREVRANGE", self._key, "+", "-", "COUNT", 1)
        self._after = last[0][0].decode() if last else NOWHERE

    async def next(self) -> list[StopNotice]:
        """Entries that came since the last call; waits a few seconds for the first."""
        told = []
        for _, entries in await patiently(self._read, outage_ms=self._outage_ms) or ():
            for entry, fields in entries:
                self._after = entry.decode()
                ref, token, how, owner = fields[1].decode().split(" ", 3)
                told.append(StopNotice(JobRef(ref), token, how, owner))
        return told

    async def _read(self) -> Any:
        return await ask(self._redis, "XREAD", "BLOCK", CANCELS_BLOCK_MS, "STREAMS", self._key, self._after)
