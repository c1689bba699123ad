"""The consumer group of a result stream: what trainers were given of it, and what of that they have acknowledged.

XACK leaves no trace on an entry: acknowledged is what the group was given and does not wait for.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.intake import TRAINERS
from prorl_mq.store import results, runs
from prorl_mq.store.core import Repeat, batched
from prorl_mq.store.store import Store

PAGE: Final = 10_000  # ids of one XPENDING
GAPS: Final = 16  # between two entries that wait, looked at in one round trip
GAP: Final = 256  # entries of one gap in one look
CLIENT: Final = "prorl-mq"  # the consumer that our own client reads forward with
FORWARD: Final = 100
CONSUMERS: Final = 1_024  # of one run: any command of a tenant's user that reads makes the one that it names


class Delivered(NamedTuple):
    """The newest entry that the group was given, how many of those given wait for their acknowledgement, and to how
    many consumers it gives.
    """

    last: str
    waiting: int
    consumers: int = 0


NO_GROUP: Final = Delivered("", 0)


class Acknowledged(NamedTuple):
    """Ids of acknowledged entries; `whole`: there are no more of them."""

    ids: Sequence[str]
    whole: bool


async def delivered(store: Store, run: RunRef) -> Delivered | None:
    """None where the stream does not exist; `NO_GROUP` where it has no such group."""
    try:
        return _delivered(await store.read("XINFO", "GROUPS", store.keys.results(run))) or NO_GROUP
    except ResponseError as error:
        if "no such key" in str(error):
            return None
        raise


async def state(store: Store, run: RunRef, first: str = "-", last: str = "+") -> tuple[Delivered, list[str]] | None:
    """The group's deliveries, and the ids of a range that wait, in order; deleted ones too. None: there is no group.

    Both come from one connection: between two, Redis could lose its last second, and what it delivered in it would look
    acknowledged.
    """
    stream, found = store.keys.results(run), list[str]()
    while True:
        asked = (("XINFO", "GROUPS", stream), ("XPENDING", stream, TRAINERS, first, last, PAGE))
        try:
            groups, rows = await store.read_many(asked)
        except ResponseError as error:
            if "no such key" in str(error) or "NOGROUP" in str(error):
                return None
            raise
        given = _delivered(groups)
        if given is None or (found and order(given.last) < order(found[-1])):
            return None
        found += [row[0].decode() for row in rows]
        if len(rows) < PAGE:
            return given, found
        first = f"({found[-1]}"


def _delivered(groups: Any) -> Delivered | None:
    for info in groups:
        about = dict(zip(info[::2], info[1::2], strict=True))
        if about[b"name"] == TRAINERS.encode():
            return Delivered(about[b"last-delivered-id"].decode(), int(about[b"pending"]), int(about[b"consumers"]))
    return None


async def acknowledged(store: Store, run: RunRef, after: str, last: str, wait: Sequence[str]) -> Acknowledged:
    """Entries after one id and up to another that do not wait: `wait` are those that do, in order."""
    found: list[str] = []
    edges = [after, *wait]
    ends = [f"({edge}" for edge in wait] + [last]
    for gaps in batched(zip(edges, ends, strict=True), GAPS):
        asked = [("XRANGE", store.keys.results(run), f"({start}", end, "COUNT", GAP) for start, end in gaps]
        for rows in await store.read_many(asked):
            found += [entry.decode() for entry, _ in rows]
            if len(rows) == GAP:
                return Acknowledged(found, whole=False)
    return Acknowledged(found, whole=True)


async def unacknowledged(store: Store, run: RunRef, cursors: Sequence[str]) -> Collection[str]:
    """Those of some entries, given in order, that nobody has acknowledged."""
    try:
        now = await state(store, run, cursors[0], cursors[-1]) if cursors else None
    except NoPermissionError:  # a trainer's Redis user of an earlier release
        now = None
    if now is None:
        return cursors
    given, waiting = now[0], set(now[1])
    return [cursor for cursor in cursors if cursor in waiting or order(cursor) > order(given.last)]


async def create(store: Store, run: RunRef) -> None:
    """Makes the group, and the stream, where they are missing: the group is given all that lies on the stream.

    Publishing makes them too, so this is for streams of an earlier release, and before the first result. Raises
    `RedisUnavailable` where this user may make no group: the service makes it soon.
    """
    words = ("XGROUP", "CREATE", store.keys.results(run), TRAINERS, "0", "MKSTREAM")
    try:
        await store.write(*words, repeat=Repeat.SAME)
    except NoPermissionError:
        raise RedisUnavailable(f"{run} has no consumer group yet: an API process makes it, try again") from None
    except ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise


async def create_if_room(store: Store, run: RunRef) -> None:
    """As `create`; a Redis that is full gets the group later."""
    with suppress(OutOfMemoryError):
        await create(store, run)


async def acknowledge(store: Store, run: RunRef, cursors: Sequence[str]) -> int:
    """XACK, for a trainer that reads by cursor: how many of them were not acknowledged before.

    The group is given what it was not yet, up to the last of them; all of that waits for its acknowledgement. Nothing
    here is refused by a full Redis, once the group exists. Raises `NotFound` where there is no such run, `RunMoved` or
    `RunArriving` where it is in another cell.
    """
    stream, left = store.keys.results(run), list(cursors)
    for cursor in left:
        results.valid(cursor)
    if not left:
        return 0
    done = int(await store.write_surely("XACK", stream, TRAINERS, *left))
    if done == len(left):
        return done
    await _read_forward(store, run, max(left, key=order))
    done += int(await store.write_surely("XACK", stream, TRAINERS, *left))
    if not done:  # answers to a run that was never made have a stream, too
        await _expect(store, run)
    return done


async def _expect(store: Store, run: RunRef) -> None:
    try:
        await runs.expect(store, run)
    except NoPermissionError:  # a tenant's own user, which learns by its intake where its run is
        await runs.expect_seen(store, run)


async def _read_forward(store: Store, run: RunRef, cursor: str) -> None:
    words = ("GROUP", TRAINERS, CLIENT, "COUNT", FORWARD, "STREAMS", store.keys.results(run), ">")
    last = "0"
    while order(last) < order(cursor):
        try:
            reply = await store.write("XREADGROUP", *words, repeat=Repeat.SAME)
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            await _expect(store, run)
            await create(store, run)
            continue
        if not reply:
            return
        last = reply[0][1][-1][0].decode()


def order(cursor: str) -> tuple[int, int]:
    """The numbers that cursors are compared by."""
    milliseconds, _, sequence = cursor.partition("-")
    return int(milliseconds), int(sequence or 0)
