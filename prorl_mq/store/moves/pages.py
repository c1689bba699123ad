"""The keys of a run that has left its cell, read page by page as the writes that another cell carries out.

A cursor of a SCAN means nothing to another server, and a server that restarts is another one: the place where a page
begins names its server, and pages begin again where that has changed. Writes may be repeated.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from redis.exceptions import ResponseError

from prorl_mq.clock import monotonic
from prorl_mq.errors import Conflict, InvalidBatch, NotFound, PayloadUnavailable, RedisUnavailable
from prorl_mq.schema.ids import RunRef, public, tenant_of
from prorl_mq.schema.intake import TRAINERS
from prorl_mq.store.audit.reads import MOVING, pages
from prorl_mq.store.core import RESTARTS
from prorl_mq.store.payloads import reading
from prorl_mq.store.payloads.files import PayloadDamaged
from prorl_mq.store.payloads.name import WITHIN, named_file
from prorl_mq.store.store import Store

PAGE_BYTES: Final = 2 << 20  # of a page, or a little more
PAGE_WRITES: Final = 2_000  # that one script carries out: ten to thirty milliseconds of Redis
PAGE_S: Final = 5.0  # for which a page is read
WRITE_BYTES: Final = 64  # of one write, beside its key and words
FILES: Final = 64  # files that are looked for together
FEW: Final = 16  # fields or entries that are read first: each may be large
PIECE: Final = 256  # members or entries that are read together
STRING_BYTES: Final = 1 << 20
FILE: Final = "FILE"  # in the place of a command: the contents of a payload file, which is named so
NAMING: Final = frozenset({"job", "group", "fork", "results", "departed"})  # kinds of keys that name such files

Pending = list[tuple[str, str]]  # keys and files that are still to be read, from where on
Place = tuple[str, str, Pending]  # server; cursor of a SCAN on it


class Copied(msgspec.Struct, frozen=True, array_like=True):
    """One command of a page. `key` has no namespace."""

    command: str
    key: str
    words: list[bytes]


class RunPage(msgspec.Struct, frozen=True):
    """Some keys of a run. `after` is where the next page begins; None: this is the last, which has the `facts`."""

    writes: list[Copied]
    after: str | None
    namespace: str
    facts: dict[str, Any] | None = None


async def page(store: Store, run: RunRef, departure: str, after: str) -> RunPage:
    """A page of a run that has left. `after`: empty for the first. With the last one the run is given away: it may be
    open in the other cell from then on.

    Raises `NotFound` if it has not left, or is gone, `InvalidBatch` for a place that no page of it has named, and
    `Conflict` for the last page of a run that is on its way back.
    """
    for _ in range(RESTARTS):
        server = await _departed(store, run, departure)
        place = _place(run, after) if after else None
        cursor, pending = place[1:] if place is not None and place[0] == server else (None, [])
        try:
            writes, cursor, pending = await _some(store, run, cursor, pending)
        except (ResponseError, ValueError):  # for want of a key: another caller may have ended the move
            await _departed(store, run, departure)
            if after:
                raise InvalidBatch(f"no page of run {public(run)!r} begins at {after[:200]!r}: move it again") from None
            raise
        if await _departed(store, run, departure) != server:
            after = ""
        elif pending or cursor != "0":
            following = msgspec.json.encode((server, cursor, pending)).decode()
            return RunPage(writes, following, store.keys.namespace)
        else:
            facts = await _given(store, run, departure)
            return RunPage(writes, None, store.keys.namespace, msgspec.msgpack.decode(facts))
    raise RedisUnavailable(f"Redis restarts again and again, and run {public(run)!r} is not read: move it again")


def _place(run: RunRef, after: str) -> Place:
    """Raises `InvalidBatch`: it would have keys read that are not of the run."""
    with suppress(msgspec.DecodeError):
        server, cursor, pending = msgspec.json.decode(after, type=Place)
        if cursor.isdecimal() and all(belongs(run, name) or named_file(name) for name, _ in pending):
            return server, cursor, pending
    raise InvalidBatch(f"no page of run {public(run)!r} begins at {after[:200]!r}: move it again")


async def _given(store: Store, run: RunRef, departure: str) -> bytes:
    said, facts = await store.give(run, departure)
    if said == "back":
        raise Conflict(f"run {public(run)!r} is on its way back to where it was: end that first, then move it again")
    if said != "given":
        raise _not_left(run, departure)
    return facts


def server_of(about: bytes) -> str:
    """The server that answers INFO so: another one after a restart, a fail-over or a move of the namespace's slot."""
    return about.partition(b"master_replid:")[2].split(None, 1)[0].decode()


async def _departed(store: Store, run: RunRef, departure: str) -> str:
    """The server that a run is on. Raises `NotFound` if it has not left by that departure, or is gone."""
    asked = (("INFO", "replication"), ("HMGET", store.keys.away(run), "way", "id"))
    about, (way, by) = await store.read_many(asked)
    if way != b"left" or by.decode() != departure:
        raise _not_left(run, departure)
    return server_of(about)


def _not_left(run: RunRef, departure: str) -> NotFound:
    return NotFound(
        f"run {public(run)!r} has not left by departure {departure[:64]!r}, or is wholly gone: move it again"
    )


async def _some(store: Store, run: RunRef, cursor: str | None, pending: Pending) -> tuple[list[Copied], str, Pending]:
    """Writes of a page, and where the next one begins. `cursor`: None before the first."""
    writes, size, ends_at = list[Copied](), 0, monotonic() + PAGE_S
    while size < PAGE_BYTES and len(writes) < PAGE_WRITES and monotonic() < ends_at:
        if not pending:
            if cursor == "0":
                break
            cursor, pending = await _keys(store, run, cursor or "0")
            continue
        if files := _files_first(pending):
            found = [each for each in await asyncio.gather(*(_file(store, run, name) for name in files)) if each]
            pending = pending[len(files) :]
        else:
            (key, at), *pending = pending
            found, rest = await _piece(store, key, at)
            pending = [*_naming(store, key, found), *([] if rest is None else [(key, rest)]), *pending]
        writes += found
        size += sum(_size(each) for each in found)
    return writes, cursor or "0", pending


def _files_first(pending: Pending) -> list[str]:
    """The files with which it begins, as many as are read together: those that are missing are waited for."""
    names, size = list[str](), 0
    for name, _ in pending[:FILES]:
        file = named_file(name)
        if file is None or (names and size + file.size > PAGE_BYTES):
            break
        names.append(name)
        size += file.size
    return names


def _naming(store: Store, key: str, found: Sequence[Copied]) -> Pending:
    """The files that some writes to a key may name. A cell without a directory cannot look for them: then a
    name beside other words of a text, as an agent may write it, counts for none.
    """
    if key.partition(":")[0] not in NAMING:
        return []
    names = {name for each in found for word in each.words for name in _names(word, whole=store.payloads is None)}
    return [(name, "0") for name in sorted(names)]


def _names(word: bytes, *, whole: bool) -> set[str]:
    found = {file[0].decode() for file in WITHIN.finditer(word)}
    if not (whole and found):
        return found
    try:
        return found & set(_texts(msgspec.msgpack.decode(word)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return found


def _texts(value: Any) -> Iterator[str]:
    """Every text in a packed value, with those that bytes in it may hold."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield from _names(value, whole=True)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for each in (*value, *value.values()):
            yield from _texts(each)


def _size(copied: Copied) -> int:
    return WRITE_BYTES + len(copied.key) + sum(map(len, copied.words))


async def own(store: Store, run: RunRef) -> AsyncIterator[list[str]]:
    """The keys of a run, without the namespace. One may come twice."""
    async for found in pages(store, ("SCAN",), ("MATCH", f"{_plain(store.keys.prefix)}*:{run}*")):
        yield _of_run(store, run, found)


def _of_run(store: Store, run: RunRef, found: Sequence[bytes]) -> list[str]:
    names = [name.decode(errors="replace").removeprefix(store.keys.prefix) for name in found]
    return [name for name in names if belongs(run, name)]


def belongs(run: RunRef, name: str) -> bool:
    kind, _, rest = name.partition(":")
    return kind in MOVING and (rest == run or rest.startswith(f"{run}:"))


async def has_files(store: Store, run: RunRef) -> bool:
    """True if a run that is still here names a payload file that is there."""
    files = store.payloads
    if files is None:
        return False
    async for names in _naming_keys(store, run):
        for name in names:
            at: str | None = "0"
            while at is not None:
                found, at = await _piece(store, name, at)
                named = [named_file(each) for each, _ in _naming(store, name, found)]
                paths = [files.path(tenant_of(run), each) for each in named if each is not None]
                if await reading.in_thread(partial(_any_there, paths)):
                    return True
    return False


def _any_there(paths: Sequence[Path]) -> bool:
    return any(path.exists() for path in paths)


async def _naming_keys(store: Store, run: RunRef) -> AsyncIterator[list[str]]:
    yield [f"results:{run}"]
    async for names in own(store, run):
        yield [name for name in names if name.partition(":")[0] in NAMING]


def _plain(prefix: str) -> str:
    """Without the meaning that signs have in a pattern."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in prefix)


async def _keys(store: Store, run: RunRef, cursor: str) -> tuple[str, Pending]:
    match = f"{_plain(store.keys.prefix)}*:{run}*"
    following, found = await store.read("SCAN", cursor, "MATCH", match, "COUNT", 4 * PIECE)
    return following.decode(), [(name, "0") for name in _of_run(store, run, found)]


async def _piece(store: Store, name: str, at: str) -> tuple[list[Copied], str | None]:
    """A part of a key from one place on, and the place behind it; None at its end."""
    key = store.keys.prefix + name
    kind, ttl_ms = await store.read_many([("TYPE", key), ("PTTL", key)])
    ends = [Copied("PEXPIRE", name, [b"%d" % max(1, ttl_ms)])] if ttl_ms > 0 else []
    match kind:
        case b"string":
            start = int(at)
            data, size = await store.read_many([("GETRANGE", key, start, start + STRING_BYTES - 1), ("STRLEN", key)])
            following = start + len(data)
            return [Copied("SETRANGE", name, [b"%d" % start, data]), *ends], str(
                following
            ) if following < size else None
        case b"stream":
            return await _entries(store, name, key, at)
        case b"hash" | b"set" | b"zset":
            command, scan = {b"hash": ("HSET", "HSCAN"), b"set": ("SADD", "SSCAN"), b"zset": ("ZADD", "ZSCAN")}[kind]
            following, members = await store.read(scan, key, at, "COUNT", FEW if kind == b"hash" else PIECE)
            if kind == b"zset":
                members = [each for pair in zip(members[1::2], members[::2], strict=True) for each in pair]
            found = [Copied(command, name, list(members[start : start + 512])) for start in range(0, len(members), 512)]
            return [*found, *ends], None if following == b"0" else following.decode()
        case _:
            return [], None


async def _entries(store: Store, name: str, key: str, at: str) -> tuple[list[Copied], str | None]:
    """Entries first, then the groups, then what each of them waits for: from `GROUP ENTRY` on."""
    if " " in at:
        place, _, start = at.partition(" ")
        return await _waiting(store, name, key, int(place), start)
    found, size, count = list[Copied](), 0, FEW
    while size < PAGE_BYTES and len(found) < PIECE:
        rows = await store.read("XRANGE", key, f"({at}" if at != "0" else "-", "+", "COUNT", count)
        found += [Copied("XADD", name, [entry, *fields]) for entry, fields in rows]
        if len(rows) < count:
            return [*found, *await _groups(store, name, key)], "0 -"
        at, size, count = rows[-1][0].decode(), sum(map(_size, found)), len(found)
    return found, at


async def _groups(store: Store, name: str, key: str) -> list[Copied]:
    about, groups = await store.read_many([("XINFO", "STREAM", key), ("XINFO", "GROUPS", key)])
    facts, found = dict(zip(about[::2], about[1::2], strict=True)), list[Copied]()
    if not facts[b"length"]:  # one that is made, so that its newest id can be set
        found.append(Copied("XGROUP", name, [b"CREATE", TRAINERS.encode(), b"0", b"MKSTREAM"]))
    found.append(Copied("XSETID", name, [facts[b"last-generated-id"]]))
    for info in groups:
        group = dict(zip(info[::2], info[1::2], strict=True))
        words = [group[b"name"], group[b"last-delivered-id"]]
        found += [Copied("XGROUP", name, [b"CREATE", *words]), Copied("XGROUP", name, [b"SETID", *words])]
    return found


async def _waiting(store: Store, name: str, key: str, place: int, start: str) -> tuple[list[Copied], str | None]:
    """Some of what a group was given and its trainer has not acknowledged. `place`: the group's among all by name."""
    groups = [dict(zip(info[::2], info[1::2], strict=True)) for info in await store.read("XINFO", "GROUPS", key)]
    if place >= len(groups):
        return [], None
    named = groups[place][b"name"]
    rows = await store.read("XPENDING", key, named, start, "+", PIECE)
    found = [
        Copied("XCLAIM", name, [
            named, consumer, b"0", entry, b"IDLE", b"%d" % idle, b"RETRYCOUNT", b"%d" % times, b"FORCE", b"JUSTID",
        ])
        for entry, consumer, idle, times in rows
    ]  # fmt: skip
    return found, f"{place} ({rows[-1][0].decode()}" if len(rows) == PIECE else f"{place + 1} -"


async def _file(store: Store, run: RunRef, name: str) -> Copied | None:
    """A payload file; None where it is missing or damaged: then the run has lost it.

    Raises `PayloadUnavailable` where it may be there and cannot be read now: the move is then repeated.
    """
    try:
        data = await reading.get(store, run, name)
    except PayloadUnavailable as error:
        why, files = error.__cause__, store.payloads
        lost = isinstance(why, FileNotFoundError) and files is not None and await reading.in_thread(lambda: files.there)
        if not (lost or isinstance(why, PayloadDamaged)):
            raise
        return None
    return Copied(FILE, name, [data]) if data is not None else None
