"""A run's keys as writes that another cell carries out: read page by page where it has left, written where it arrives.

No command comes from the other cell as it is: its words are those of a few commands that add to a key of this very run.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from prorl_mq.errors import InvalidBatch, NotFound, PayloadUnavailable, PayloadUnwritten, RunArriving, RunMoved
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import RunRef, public, tenant_of
from prorl_mq.schema.intake import REPORT_FIELD, RESULT_FIELD, TRAINERS
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.store.audit.reads import MOVING, pages
from prorl_mq.store.moves.away import elsewhere
from prorl_mq.store.payloads import reading
from prorl_mq.store.payloads.files import PayloadDamaged
from prorl_mq.store.payloads.name import WITHIN
from prorl_mq.store.results import owned_bytes
from prorl_mq.store.store import Store
from prorl_mq.store.verbs.moves import DepartedRun, Write

PAGE_BYTES: Final = 2 << 20
PIECE: Final = 256  # members, fields or entries that are read together
STRING_BYTES: Final = 1 << 20
FILE: Final = "FILE"  # in the place of a command: the contents of a payload file, which is named so
NAMING: Final = frozenset({"job", "group", "fork", "departed"})  # kinds of keys that name such files
TOKENS: Final = frozenset(
    {b"token", b"commits", b"made"}
)  # fields of a job: two cells of one server give the same ones
COMMANDS: Final = frozenset({"SETRANGE", "HSET", "ZADD", "SADD", "XADD", "XSETID", "XGROUP", "XCLAIM", "PEXPIRE"})


Place = tuple[str, list[tuple[str, str]]]  # cursor of a SCAN; keys and files that are still to be read, from where on


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


async def left(store: Store, run: RunRef) -> DepartedRun | None:
    """The departure by which a run has left, while its keys are here."""
    way, departure, cell = await store.read("HMGET", store.keys.away(run), "way", "id", "cell")
    return DepartedRun(departure.decode(), cell.decode()) if way == b"left" else None


async def where(store: Store, run: RunRef) -> RunMoved | RunArriving | None:
    """The error that says where a run is, for one that is not here."""
    way, cell = await store.read("HMGET", store.keys.away(run), "way", "cell")
    return elsewhere(run, way.decode(), cell.decode()) if way else None


async def depart(store: Store, run: RunRef, cell: str) -> DepartedRun | Mapping[str, int]:
    """Holds a run's admission for some seconds and ends it here if nothing of it is in flight, else what is.

    Raises `NotFound`.
    """
    await store.hold_to_leave(run)
    newest, due = "0-0", 0
    while rows := await store.read("XRANGE", store.keys.due, f"({newest}", "+", "COUNT", PIECE):
        newest = rows[-1][0].decode()
        due += sum(fields[1].decode().startswith(f"{run}:") for _, fields in rows)
    if due:
        return {"verdicts": due}
    found = await store.depart(run, cell, due_after=newest)
    if found is None:
        raise NotFound(f"there is no run {public(run)!r} here")
    return found


async def page(store: Store, run: RunRef, departure: str, after: str) -> RunPage:
    """A page of a run that has left. `after`: empty for the first. Raises `NotFound` if it has not, or is gone."""
    now = await left(store, run)
    if now is None or now.id != departure:
        raise NotFound(
            f"run {public(run)!r} has not left by departure {departure[:64]!r}, or is wholly gone: move it again"
        )
    cursor, pending = msgspec.json.decode(after, type=Place) if after else ("0", [])
    started, writes, size = bool(after), list[Copied](), 0
    while size < PAGE_BYTES:
        if not pending:
            if started and cursor == "0":
                break
            cursor, pending = await _keys(store, run, cursor)
            started = True
            continue
        (key, at), *pending = pending
        found, rest = await _file(store, run, key) if key.startswith("file:") else await _piece(store, key, at)
        writes += found
        if key.partition(":")[0] in NAMING:
            names = {file[0].decode() for each in found for word in each.words for file in WITHIN.finditer(word)}
            pending += [(name, "0") for name in sorted(names)]
        size += sum(len(word) for each in found for word in each.words)
        if rest is not None:
            pending.insert(0, (key, rest))
    if pending or cursor != "0":
        return RunPage(writes, msgspec.json.encode((cursor, pending)).decode(), store.keys.namespace)
    packed = await store.read("HGET", store.keys.away(run), "facts")
    return RunPage(writes, None, store.keys.namespace, msgspec.msgpack.decode(packed))


async def take(store: Store, run: RunRef, mover: str, departure: str, page: RunPage) -> tuple[str, str]:
    """Writes a page where the run arrives, and opens the run with the last one: the verb's answer.

    Raises `InvalidBatch` for a page that writes to anything but the run.
    """
    for each in page.writes:
        if each.command == FILE:
            await _store_file(store, run, each)
    writes = [_write(store, run, page.namespace, each) for each in page.writes if each.command != FILE]
    said = await store.arrive(run, "page", mover=mover, writes=writes)
    if page.after is not None or said[0] != "written":
        return said
    held = await _held(store, run)
    return await store.arrive(run, "open", mover=mover, departure=departure, facts=page.facts, held=held)


async def clear(store: Store, run: RunRef, departure: str) -> str:
    """Removes a run that has left from where it was, but for a note of its cell: `vacated` or `already`."""
    async for names in _own(store, run):
        if names and await store.vacate(run, departure, [store.keys.prefix + name for name in names]) == "already":
            return "already"
    return await store.vacate(run, departure, [], last=True)


async def _own(store: Store, run: RunRef) -> AsyncIterator[list[str]]:
    """The keys of a run, without the namespace. One may come twice."""
    async for found in pages(store, ("SCAN",), ("MATCH", f"{_plain(store.keys.prefix)}*:{run}*")):
        yield _of_run(store, run, found)


def _of_run(store: Store, run: RunRef, found: Sequence[bytes]) -> list[str]:
    names = [name.decode(errors="replace").removeprefix(store.keys.prefix) for name in found]
    return [name for name in names if _belongs(run, name)]


def _belongs(run: RunRef, name: str) -> bool:
    kind, _, rest = name.partition(":")
    return kind in MOVING and (rest == run or rest.startswith(f"{run}:"))


def _plain(prefix: str) -> str:
    """Without the meaning that signs have in a pattern."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in prefix)


async def _keys(store: Store, run: RunRef, cursor: str) -> tuple[str, list[tuple[str, str]]]:
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
            following, members = await store.read(scan, key, at, "COUNT", PIECE)
            if kind == b"zset":
                members = [each for pair in zip(members[1::2], members[::2], strict=True) for each in pair]
            found = [Copied(command, name, list(members[start : start + 512])) for start in range(0, len(members), 512)]
            return [*found, *ends], None if following == b"0" else following.decode()
        case _:
            return [], None


async def _entries(store: Store, name: str, key: str, at: str) -> tuple[list[Copied], str | None]:
    rows = await store.read("XRANGE", key, f"({at}" if at != "0" else "-", "+", "COUNT", PIECE)
    found = [Copied("XADD", name, [entry, *fields]) for entry, fields in rows]
    if len(rows) == PIECE:
        return found, rows[-1][0].decode()
    about, groups = await store.read_many([("XINFO", "STREAM", key), ("XINFO", "GROUPS", key)])
    facts = dict(zip(about[::2], about[1::2], strict=True))
    if not facts[b"length"]:  # one that is made, so that its newest id can be set
        found.append(Copied("XGROUP", name, [b"CREATE", TRAINERS.encode(), b"0", b"MKSTREAM"]))
    found.append(Copied("XSETID", name, [facts[b"last-generated-id"]]))
    for info in groups:
        group = dict(zip(info[::2], info[1::2], strict=True))
        named = group[b"name"]
        found.append(Copied("XGROUP", name, [b"CREATE", named, group[b"last-delivered-id"]]))
        found.append(Copied("XGROUP", name, [b"SETID", named, group[b"last-delivered-id"]]))
        start = "-"
        while waiting := await store.read("XPENDING", key, named, start, "+", PIECE):
            found += [
                Copied("XCLAIM", name, [
                    named, consumer, b"0", entry, b"IDLE", b"%d" % idle, b"RETRYCOUNT", b"%d" % times, b"FORCE",
                    b"JUSTID",
                ])
                for entry, consumer, idle, times in waiting
            ]  # fmt: skip
            start = f"({waiting[-1][0].decode()}"
    return found, None


async def _file(store: Store, run: RunRef, name: str) -> tuple[list[Copied], None]:
    """A payload file; nothing where it is missing or damaged: then the run has lost it.

    Raises `PayloadUnavailable` where it may be there and cannot be read now: the move is then repeated.
    """
    try:
        data = await reading.get(store, run, name)
    except PayloadUnavailable as error:
        why, files = error.__cause__, store.payloads
        lost = isinstance(why, FileNotFoundError) and files is not None and await reading.in_thread(lambda: files.there)
        if not (lost or isinstance(why, PayloadDamaged)):
            raise
        data = None
    return ([Copied(FILE, name, [data])] if data else []), None


async def _store_file(store: Store, run: RunRef, copied: Copied) -> None:
    files = store.payloads
    if files is None or not await reading.in_thread(lambda: files.there):
        raise PayloadUnwritten(f"run {public(run)!r} has payloads in files, and this cell has no directory for them")
    try:
        written = await reading.in_thread(lambda: files.write(tenant_of(run), copied.words[0]))
    except OSError as error:
        raise PayloadUnwritten(f"payload {copied.key} is not written: {error}") from None
    if str(written) != copied.key:
        raise InvalidBatch(f"the payload {copied.key[:200]!r} has other contents than its name says")


def _write(store: Store, run: RunRef, namespace: str, copied: Copied) -> Write:
    if copied.command not in COMMANDS or not copied.words or not _belongs(run, copied.key):
        raise InvalidBatch(f"{copied.command[:20]!r} on {copied.key[:200]!r} is no part of run {public(run)!r}")
    kind, words = copied.key.partition(":")[0], copied.words
    old, new = f"{{{namespace}}}:".encode(), store.keys.prefix.encode()
    if kind == "job" and copied.command == "HSET":  # they have ended: no worker of this cell has their tokens
        pairs = zip(words[::2], words[1::2], strict=True)
        named = {name: new + value.removeprefix(old) if value.startswith(old) else value for name, value in pairs}
        words = [word for name, value in named.items() for word in (name, b"" if name in TOKENS else value)]
    elif old != new and kind in {"group", "departed"}:
        words = [_renamed(word, old + b"blob:", new + b"blob:") for word in words]
    return Write(copied.command, store.keys.prefix + copied.key, words)


def _renamed(word: bytes, old: bytes, new: bytes) -> bytes:
    """A packed record, whose blobs have their names in this cell."""
    if old not in word:
        return word
    return msgspec.msgpack.encode(_within(msgspec.msgpack.decode(word), old.decode(), new.decode()))


def _within(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str) and value.startswith(old):
        return new + value.removeprefix(old)
    if isinstance(value, list):
        return [_within(each, old, new) for each in value]
    if isinstance(value, dict):
        return {name: _within(each, old, new) for name, each in value.items()}
    return value


async def _held(store: Store, run: RunRef) -> int:
    """Bytes of the results that have arrived: a name of a blob may have another length here."""
    size, after = 0, "-"
    while rows := await store.read("XRANGE", store.keys.departed(run), after, "+", "COUNT", PIECE):
        for _, (field, body) in rows:
            record = decode(body, GroupRecord) if field == RESULT_FIELD else None
            size += owned_bytes(record, len(body)) if record else len(body) if field == REPORT_FIELD else 0
        after = f"({rows[-1][0].decode()}"
    return size
