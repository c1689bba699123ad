"""The steps of a run's move: it leaves its cell, its pages are written where it arrives, and its keys are removed.

No command comes from the other cell as it is: its words are those of a few commands that add to a key of this very run.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from prorl_mq.errors import InvalidBatch, NotFound, PayloadUnwritten, RedisUnavailable, RunArriving, RunMoved
from prorl_mq.schema.codec import decode
from prorl_mq.schema.ids import RunRef, public, tenant_of
from prorl_mq.schema.intake import RESULT_FIELD
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.schema.status import RunPlace
from prorl_mq.store.core import RESTARTS
from prorl_mq.store.moves.away import elsewhere
from prorl_mq.store.moves.facts import checked
from prorl_mq.store.moves.pages import FEW, FILE, PIECE, Copied, RunPage, belongs, has_files, own, server_of
from prorl_mq.store.payloads import reading
from prorl_mq.store.results import RESULTS, owned_bytes
from prorl_mq.store.store import Store
from prorl_mq.store.verbs.moves import DepartedRun, Write

SAMPLE: Final = b"s:"  # begins the name of a field of a group that holds a packed record
TOKENS: Final = frozenset(
    {b"token", b"commits", b"made"}
)  # fields of a job: two cells of one server give the same ones
COMMANDS: Final = frozenset({"SETRANGE", "HSET", "ZADD", "SADD", "XADD", "XSETID", "XGROUP", "XCLAIM", "PEXPIRE"})


async def whereabouts(store: Store, run: RunRef) -> RunPlace:
    keys = store.keys
    fields = ("way", "cell", "id", "given", "pages")
    row, known, came = await store.read_many([
        ("HMGET", keys.away(run), *fields), ("EXISTS", keys.run(run)), ("HGET", keys.arrivals, run)
    ])  # fmt: skip
    way, cell, departure, given, count = row
    if way is None:
        return RunPlace(state="here" if known else "none", id=(came or b"").decode())
    return RunPlace(
        state=way.decode(), cell=cell.decode(), id=(departure or b"").decode(), given=bool(given), pages=int(count or 0)
    )


async def where(store: Store, run: RunRef) -> RunMoved | RunArriving | None:
    """The error that says where a run is, for one that is not here."""
    way, cell = await store.read("HMGET", store.keys.away(run), "way", "cell")
    return elsewhere(run, way.decode(), cell.decode()) if way else None


async def depart(store: Store, run: RunRef, cell: str, *, files: bool = True) -> DepartedRun | Mapping[str, int]:
    """Holds a run's admission for some seconds and ends it here if nothing of it is in flight, else what is.

    Raises `NotFound`, and `PayloadUnwritten` for a run with payload files if the other cell takes no `files`. All of
    the run is looked through for them when it is first asked to leave, and once more when its last job has ended.
    """
    again = await store.hold_to_leave(run)
    if not files and again and (jobs := int(await store.read("HGET", store.keys.in_flight, run) or 0)):
        return {"jobs": jobs}
    if not files and await has_files(store, run):
        raise PayloadUnwritten(
            f"run {public(run)!r} has payloads in files, and cell {cell} has no directory for them: make one there, "
            "then move it again"
        )
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


async def takes_files(store: Store) -> bool:
    """True if a run with payload files may come here."""
    files = store.payloads
    return files is not None and await reading.in_thread(lambda: files.there)


async def take(
    store: Store, run: RunRef, mover: str, departure: str, page: RunPage, *, first: bool = False
) -> tuple[str, str]:
    """Writes a page where the run arrives, and opens the run with the last one: the verb's answer. The `first` one
    removes what an earlier move has left here.

    Raises `InvalidBatch` for a page that writes to anything but the run.
    """
    facts = checked(run, page.facts) if page.after is None else None
    writes = [_write(store, run, page.namespace, each) for each in page.writes if each.command != FILE]
    said = await _emptied(store, run, mover, departure) if first else ("cleared", "")
    if said[0] != "cleared":
        return said
    for each in page.writes:
        if each.command == FILE:
            await _store_file(store, run, each)
    said = await store.arrive(run, "page", mover=mover, departure=departure, writes=writes)
    if page.after is not None or said[0] != "written":
        return said
    held = await _held(store, run)
    return await store.arrive(run, "open", mover=mover, departure=departure, facts=facts, held=held)


async def _emptied(store: Store, run: RunRef, mover: str, departure: str) -> tuple[str, str]:
    """Removes what was copied of an earlier departure: a group that has closed since would come back with it."""
    said = await store.arrive(run, "clear", mover=mover, departure=departure, first=True)
    async for names in own(store, run):
        if names and said[0] == "cleared":
            keys = [store.keys.prefix + name for name in names]
            said = await store.arrive(run, "clear", mover=mover, departure=departure, clears=keys)
    return said


async def clear(store: Store, run: RunRef, departure: str) -> str:
    """Removes a run that has left from where it was, but for a note of its cell: `vacated` or `already`.

    Raises `RedisUnavailable`; repeat it then.
    """
    return await _removed(store, run, partial(store.vacate, run, departure), done="vacated")


async def refuse(store: Store, run: RunRef, departure: str, mover: str, cell: str) -> str:
    """Lets a run arrive here no more by a departure that `cell` takes back, and removes what has come of it: `refused`,
    or why not, as the verb says. Raises `RedisUnavailable`; repeat it then.
    """
    remove = partial(store.refuse, run, departure, mover=mover, cell=cell)
    said = await remove([])
    return said if said != "refused" else await _removed(store, run, remove, done="refused")


async def _removed(store: Store, run: RunRef, remove: Callable[..., Awaitable[str]], *, done: str) -> str:
    """Has `remove` called for all keys of a run, and at last for none, with the server that was searched."""
    for _ in range(RESTARTS):
        server = server_of(await store.read("INFO", "replication"))
        async for names in own(store, run):
            if names and (said := await remove([store.keys.prefix + name for name in names])) != done:
                return said
        said = await remove([], last=server)
        if said != "restarted":
            return said
    raise RedisUnavailable(f"Redis restarts again and again, and run {public(run)!r} is not removed: move it again")


async def _store_file(store: Store, run: RunRef, copied: Copied) -> None:
    files = store.payloads
    if files is None or not await takes_files(store):
        raise PayloadUnwritten(f"run {public(run)!r} has payloads in files, and this cell has no directory for them")
    try:
        written = await reading.in_thread(lambda: files.write(tenant_of(run), copied.words[0]))
    except OSError as error:
        raise PayloadUnwritten(f"payload {copied.key} is not written: {error}") from None
    if str(written) != copied.key:
        raise InvalidBatch(f"the payload {copied.key[:200]!r} has other contents than its name says")


def _write(store: Store, run: RunRef, namespace: str, copied: Copied) -> Write:
    if copied.command not in COMMANDS or not copied.words or not belongs(run, copied.key):
        raise InvalidBatch(f"{copied.command[:20]!r} on {copied.key[:200]!r} is no part of run {public(run)!r}")
    kind, old, new = copied.key.partition(":")[0], f"{{{namespace}}}:".encode(), store.keys.prefix.encode()
    if kind == "job" and copied.command == "HSET":  # they have ended: no worker of this cell has their tokens
        named = [(name, b"" if name in TOKENS else _moved(value, old, new)) for name, value in _pairs(copied.words)]
        words = [word for pair in named for word in pair]
    elif old != new and (kind, copied.command) == ("group", "HSET"):
        words = _with_records(copied.words, SAMPLE, old, new)
    elif old != new and (kind, copied.command) == ("departed", "XADD"):
        words = [copied.words[0], *_with_records(copied.words[1:], RESULT_FIELD, old, new)]
    else:
        words = copied.words
    return Write(copied.command, store.keys.prefix + copied.key, words)


def _pairs(words: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    if len(words) % 2:
        raise InvalidBatch(f"a field of the page has no value: {words[-1][:64]!r}")
    return list(zip(words[::2], words[1::2], strict=True))


def _moved(value: bytes, old: bytes, new: bytes) -> bytes:
    return new + value.removeprefix(old) if value.startswith(old) else value


def _with_records(words: Sequence[bytes], named: bytes, old: bytes, new: bytes) -> list[bytes]:
    """Fields with their values, whose packed records are under names that begin so: these name their blobs here."""
    old, new = old + b"blob:", new + b"blob:"
    return [
        word
        for name, value in _pairs(words)
        for word in (name, _renamed(value, old, new) if name.startswith(named) and old in value else value)
    ]


def _renamed(record: bytes, old: bytes, new: bytes) -> bytes:
    try:
        found = msgspec.msgpack.decode(record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # as useless there as it was here
        return record
    return msgspec.msgpack.encode(_within(found, old.decode(), new.decode()))


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
    while rows := await store.read("XRANGE", store.keys.departed(run), after, "+", "COUNT", FEW):
        size += sum(_held_by(fields[0], fields[1]) for _, fields in rows)
        after = f"({rows[-1][0].decode()}"
    return size


def _held_by(field: bytes, body: bytes) -> int:
    if field not in RESULTS:
        return 0
    try:
        return owned_bytes(decode(body, GroupRecord), len(body)) if field == RESULT_FIELD else len(body)
    except msgspec.MsgspecError:
        return len(body)
