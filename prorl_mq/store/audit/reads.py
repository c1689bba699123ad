"""The reader that an audit needs, and slices of what may be large. Nothing here writes."""

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from redis.exceptions import ResponseError

from prorl_mq.schema.ids import GroupRef, RunRef, public, tenant_of
from prorl_mq.store.core import Command
from prorl_mq.store.layout.keys import Keys

UNDECODED: Final = "\N{REPLACEMENT CHARACTER}"  # stands for bytes of a name that are no UTF-8
MISREAD: Final = ("WRONGTYPE", "Invalid stream ID")  # refusals of a read that another key's value named
GONE: Final = -2  # the TTL of a key that there is no more
PAGE: Final = 256  # keys or members that are looked at together

STREAM, HASH, ZSET, SET, STRING = "stream", "hash", "zset", "set", "string"
# The type of every kind of key that the table in `keys.py` names
TYPES: Final = {
    "stage": STREAM, "epoch": HASH, "leases": ZSET, "delayed": ZSET, "deadlines": ZSET, "paused": ZSET,
    "due": STREAM, "changed": ZSET, "cancels": STREAM, "events": STREAM, "workers": ZSET, "worker": HASH,
    "runs": ZSET, "run": HASH, "settings": HASH,
    "in_flight": HASH, "counters": HASH, "unacked": HASH, "backlog": ZSET, "groups": SET, "reservoir": ZSET,
    "drawn": ZSET, "parked": ZSET, "carried": ZSET, "carrying": ZSET, "dapo": ZSET, "batches": ZSET, "batch": HASH,
    "group": HASH, "job": HASH, "open": STRING, "sealed": STRING, "fork": HASH, "blob": STRING, "results": STREAM,
    "intake": STREAM, "policy": HASH, "lanes": SET, "intakes": SET, "pools": SET, "bytes": STRING, "duty": STRING,
    "prorl": SET, "schemas": HASH, "families": HASH, "breakers": HASH, "answers": ZSET, "cancellable": SET,
    "to_cancel": SET, "archive": STREAM, "archiving": ZSET, "archive_state": HASH, "mark": STRING, "images": HASH,
    "placed": STRING, "offer": STRING, "seats": HASH, "away": HASH, "departed": STREAM, "leaving": ZSET,
    "arrivals": HASH,
}  # fmt: skip
_RUN, _OF_RUN, _JOB = r"[^:]+:[^:]+", r"[^:]+:[^:]+:[^:]+", r"[^:]+:[^:]+:[^:]+:[0-9]+"
_POOL = r"[^:]+(:[^:]+)?"  # of a tenant, or of an older release
# What follows the kind in the name of a key; nothing where the kind is not named here
NAMES: Final = {
    "stage": ".+", "changed": "admit|draw", "worker": ".+", "run": _RUN, "settings": "runs|tenants", "backlog": _RUN,
    "groups": f"{_RUN}|{_OF_RUN}", "reservoir": f"{_RUN}|{_OF_RUN}", "drawn": _OF_RUN, "parked": _OF_RUN,
    "carried": _RUN, "batches": _RUN, "batch": _OF_RUN, "group": _OF_RUN, "job": _JOB, "open": _OF_RUN,
    "sealed": _OF_RUN, "fork": _OF_RUN, "blob": f"{_JOB}:[^:]+:[^:]+", "results": _RUN,
    "answers": _RUN, "archive": _RUN, "intake": _RUN, "cancellable": _RUN, "to_cancel": "[^:]+",
    "intakes": "([^:]+)?", "pool": f"{_POOL}(:info)?", "policy": f"{_POOL}(:update)?", "lanes": "(families)?",
    "paused": "(runs)?", "bytes": "eval", "duty": ".+", "mark": "([^:]+)?", "images": "(jobs)?",
    "placed": _RUN, "seats": _POOL, "away": _RUN, "departed": _RUN,
}  # fmt: skip
WITH_INTAKE: Final = frozenset({"results", "answers"})  # kinds that a trainer has before its run's first batch
OF_RUNS: Final = frozenset({"results", "groups", "backlog", "carried", "run", "answers", "cancellable", "batches"})
# Kinds of keys that go with a run to another cell; what else it holds is in the facts of its departure
MOVING: Final = frozenset({
    "run", "backlog", "groups", "reservoir", "drawn", "parked", "carried", "batches", "batch", "group", "job", "open",
    "sealed", "fork", "blob", "departed",
})  # fmt: skip
TEMPORARY: Final = frozenset({"worker", "duty", "mark", "placed", "offer", "seats"})  # keys that always have a TTL


class Reads(Protocol):
    """A namespace that can be read: a store, or whatever else answers Redis's reading commands."""

    keys: Keys

    async def read_many(self, commands: Sequence[Command]) -> list[Any]:
        """Several reads in one round trip."""
        ...

    async def read_at_once(self, commands: Sequence[Command]) -> list[Any]:
        """Several reads between which nothing changes."""
        ...


class Key(NamedTuple):
    """One key. `kind` is the first part of its name behind the prefix, `rest` what follows."""

    name: str
    kind: str
    rest: str
    type: str
    ttl_ms: int  # -1: it has none

    @property
    def fits(self) -> bool:
        """True if the table of keys names its kind, and it has that kind's type and a name of that kind's form."""
        pool = self.kind == "pool" and self.type == (HASH if self.rest.endswith(":info") else ZSET)
        named = re.fullmatch(NAMES.get(self.kind, ""), self.rest) and UNDECODED not in self.name
        return bool(named) and (pool or TYPES.get(self.kind) == self.type)


async def keys_of(reads: Reads) -> AsyncIterator[list[Key]]:
    """Every key of the namespace in pages; one may come twice. Source: SCAN."""
    prefix = reads.keys.prefix
    pattern = "".join(f"[{each}]" if each in "*?[" else each for each in prefix) + "*"
    async for page in pages(reads, ("SCAN",), ("MATCH", pattern)):
        about = await reads.read_many([(word, name) for name in page for word in ("TYPE", "PTTL")])
        found = [
            _key(name.decode(errors="replace"), prefix, kind.decode(), int(ttl_ms))
            for name, kind, ttl_ms in zip(page, about[::2], about[1::2], strict=True)
        ]
        yield [key for key in found if key.type != "none" and key.ttl_ms != GONE]


async def settled(reads: Reads, page: Sequence[Key]) -> list[Key]:
    """Those of a page that belong to no run which is on its way from or to another cell."""
    runs = {key: RunRef(":".join(key.rest.split(":")[:2])) for key in page if key.kind in MOVING | {"results"}}
    asked = sorted(set(runs.values()))
    ways = await reads.read_many([("HGET", reads.keys.away(run), "way") for run in asked])
    moving = {run for run, way in zip(asked, ways, strict=True) if way in {b"left", b"arriving"}}
    return [key for key in page if runs.get(key) not in moving]


async def pages(reads: Reads, head: Sequence[str], tail: Sequence[str | int] = ()) -> AsyncIterator[list[bytes]]:
    """Slices of a scan: of all keys, or of the members of one. Source: SCAN, SSCAN, ZSCAN, HSCAN."""
    cursor = b"0"
    while True:
        [(cursor, page)] = await reads.read_many([(*head, cursor, *tail, "COUNT", PAGE)])
        yield page
        if cursor == b"0":
            return


async def entries(reads: Reads, stream: str, *, count: int = PAGE) -> AsyncIterator[list[tuple[str, list[bytes]]]]:
    """Slices of a stream, each entry with its fields."""
    after = "-"
    while True:
        [rows] = await reads.read_many([("XRANGE", stream, after, "+", "COUNT", count)])
        yield [(entry.decode(), fields) for entry, fields in rows]
        if len(rows) < count:
            return
        after = f"({rows[-1][0].decode()}"


async def without_owner(reads: Reads, page: Iterable[Key]) -> list[Key]:
    """Keys of a run, an open group, an intake or a process that no list of those names, or that should have a TTL."""
    asked, found = [], []
    for key in page:
        owners = _owners(reads.keys, key)
        asked += [(key, owner) for owner in owners]
        if not owners and key.kind in TEMPORARY:
            found.append(key)
    rows = await reads.read_many([command for _, command in asked])
    owned = {key for (key, _), row in zip(asked, rows, strict=True) if row}
    found += [key for key in dict.fromkeys(key for key, _ in asked) if key not in owned]
    return [key for key in found if key.ttl_ms < 0]


def _owners(keys: Keys, key: Key) -> list[tuple[str, str, str]]:
    """Reads that all answer nothing where the key has no owner; none for a kind that is judged otherwise."""
    if key.kind == "groups" and key.rest.count(":") > 1:  # a batch's: its groups say whose they are
        return []
    if key.kind in OF_RUNS:
        return [("ZSCORE", keys.runs, key.rest), *(_intake(keys, key.rest) if key.kind in WITH_INTAKE else ())]
    if key.kind in {"open", "sealed", "fork"}:
        return [("HGET", keys.group(GroupRef(key.rest)), "n")]
    return _intake(keys, key.rest) if key.kind == "intake" else []


def _intake(keys: Keys, run: str) -> list[tuple[str, str, str]]:
    tenant, name = tenant_of(run), public(run)
    return [("SISMEMBER", keys.intakes, run), ("SISMEMBER", keys.intakes_of(tenant), name)]


def misread(error: Exception) -> bool:
    """True if an error comes of what a key holds, not of the server or of its user's rights."""
    refused = isinstance(error, ResponseError) and any(text in str(error) for text in MISREAD)
    return refused or isinstance(error, (ValueError, OverflowError, msgspec.MsgspecError))


def texts(names: Sequence[str], row: Iterable[bytes | None]) -> dict[str, str]:
    """Fields that are there, by name."""
    return {name: value.decode(errors="replace") for name, value in zip(names, row, strict=True) if value is not None}


def number(score: bytes | None) -> int | None:
    """A score of a sorted set; None where there is no such member."""
    return None if score is None else int(float(score))


def _key(name: str, prefix: str, kind: str, ttl_ms: int) -> Key:
    first, _, rest = name.removeprefix(prefix).partition(":")
    return Key(name, first, rest, kind, ttl_ms)
