"""The service's side of intakes: what lies on them is read so that no message is a danger to another tenant's.

Sizes are known before anything is read. Intakes that hold little are read together; one that holds more is read alone,
under a deadline of its own; and one that holds more than a message may have is weighed, one message at a time.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.intake import MESSAGE_FIELD
from prorl_mq.store.core import batched
from prorl_mq.store.store import Store

AT_ONCE: Final = 64  # messages of one intake in one look
SMALL_BYTES: Final = 1 << 20  # of an intake that is read together with others
LOOK_BYTES: Final = 4 << 20  # read in one look
INTAKES_AT_ONCE: Final = 1_024  # in one script call
LARGE_MS: Final = 27_000  # blocked for at most; the answer may then take 30 s: 64 MiB at 2.3 MB/s


class WrongKind(ResponseError):
    """The intake of a run is no stream, but a key of another kind."""


class SlowMessage(ResponseError):
    """An intake could not be read in time by a Redis that answers."""


class IntakeEntry(NamedTuple):
    """A message of an intake; `body` is empty where an entry has none. `other`: a field that it has beside that one."""

    run: RunRef
    entry: str
    body: bytes
    other: bytes | None = None


class Mail(NamedTuple):
    """Contents of an intake: so many messages, and about so many bytes, at least those of the first `AT_ONCE`.

    `messages`: the oldest, or None where they are to be read alone. Bytes are -1 where the intake is no stream.
    """

    run: RunRef
    bytes: int
    length: int
    messages: Sequence[IntakeEntry] | None


class Weight(NamedTuple):
    """A message's id and its bytes."""

    entry: str
    bytes: int


async def look(store: Store, runs: Sequence[RunRef]) -> list[Mail]:
    """Contents of the intakes of some runs; empty ones are left out."""
    found: list[Mail] = []
    for some in batched(runs, INTAKES_AT_ONCE):
        rows = await store.peek(some, limit=AT_ONCE, most_bytes=SMALL_BYTES, room_bytes=LOOK_BYTES)
        found += [_mail(some[place - 1], *about) for place, *about in rows]
    return found


async def weigh(store: Store, run: RunRef) -> Weight | None:
    """The oldest message's size, where there is one. Redis copies the message for this; it is not sent."""
    found = await store.weigh(run)
    return Weight(found[0].decode(), found[1]) if found else None


async def alone(store: Store, run: RunRef, *, limit: int) -> list[IntakeEntry]:
    """The oldest messages of one run, read once under a deadline that fits 64 MiB. More than were there when they were
    measured are not to be asked for.

    Raises `SlowMessage` where that is too short though Redis answers.
    """
    words = ("XREAD", "COUNT", limit, "BLOCK", LARGE_MS, "STREAMS", store.keys.intake(run), "0")  # it never blocks
    try:
        reply = await store.wait_read(*words, outage_ms=0)
    except RedisUnavailable as error:
        await store.read("PING")
        raise SlowMessage(f"messages on the intake of run {run!r} were not read in time: {error}") from error
    return [_entry(run, *row) for _, entries in reply or () for row in entries]


async def wait(store: Store, runs: Sequence[RunRef], *, block_ms: int) -> None:
    """Waits up to `block_ms` for a message on empty intakes. It is read for no other reason, whatever its size: one
    that does not arrive in time has come, too.
    """
    names = [store.keys.intake(run) for run in runs]
    with suppress(RedisUnavailable):
        try:
            words = ("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS")
            await store.wait_read(*words, *names, *["0"] * len(names), outage_ms=0)
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):  # that one is named by the next look
                raise


def _mail(run: RunRef, size: int, length: int, entries: Any) -> Mail:
    return Mail(run, size, length, None if entries is None else [_entry(run, *row) for row in entries])


def _entry(run: RunRef, entry: bytes, fields: Sequence[bytes] | None) -> IntakeEntry:
    names = (fields or [])[::2]
    found = dict(zip(names, (fields or [])[1::2], strict=True))
    others = [name for name in names if name != MESSAGE_FIELD]
    again = [MESSAGE_FIELD] if names.count(MESSAGE_FIELD) > 1 else []
    return IntakeEntry(run, entry.decode(), found.get(MESSAGE_FIELD, b""), next(iter([*others, *again]), None))
