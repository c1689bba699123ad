"""The event stream: state changes of all jobs, read in order; each entry holds the lines of one script call."""

from typing import Any, Final, NamedTuple

from prorl_mq.schema.ids import id_at
from prorl_mq.store.store import Store

START: Final = "0-0"  # before the first entry


class EventEntry(NamedTuple):
    """One entry. `lines`: a job and its event each, separated by tabs."""

    id: str
    lines: bytes


async def after(store: Store, cursor: str, *, limit: int) -> list[EventEntry]:
    """The entries after a cursor, oldest first."""
    return _entries(await store.read("XRANGE", store.keys.events, f"({cursor}", "+", "COUNT", limit))


async def wait_after(store: Store, cursor: str, *, limit: int, wait_ms: int) -> list[EventEntry]:
    """The same, waited for; empty where nothing has come in time."""
    command = ("XREAD", "COUNT", limit, "BLOCK", wait_ms, "STREAMS", store.keys.events, cursor)
    reply = await store.wait_read(*command)
    return _entries(reply[0][1]) if reply else []


async def newest(store: Store, *, limit: int, since_ms: int | None = None) -> list[EventEntry]:
    """The last entries, newest first; with `since_ms` those that came since then, by the service's clock."""
    first: str | int = "-"
    if since_ms is not None and (last := await newest(store, limit=1)):
        first = id_at(since_ms, last[0].id)
    return _entries(await store.read("XREVRANGE", store.keys.events, "+", first, "COUNT", limit))


async def ends(store: Store) -> tuple[str, str]:
    """The first entry if entries before it were trimmed, else `START`; and the last that the stream ever had."""
    if not await store.read("EXISTS", store.keys.events):
        return START, START
    row = await store.read("XINFO", "STREAM", store.keys.events)
    about: dict[bytes, Any] = dict(zip(row[::2], row[1::2], strict=True))
    last: str = about[b"last-generated-id"].decode()
    trimmed = int(about.get(b"entries-added", 0)) > int(about[b"length"])
    return about[b"first-entry"][0].decode() if trimmed and about[b"first-entry"] else START, last


def _entries(rows: Any) -> list[EventEntry]:
    return [EventEntry(name.decode(), fields[1]) for name, fields in rows]
