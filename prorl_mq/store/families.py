"""Task families: their schemas, which workers have which, and the lanes of those that some worker of a stage lacks.

A worker's heartbeat names a digest of its families, which `families` spells out: few sets are many workers'.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from prorl_mq.errors import NoWorkersYet, UnknownDataSource
from prorl_mq.schema.items import Lane
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.task_schema import Schema, nearest
from prorl_mq.store import breakers
from prorl_mq.store.breakers import Shared
from prorl_mq.store.core import Repeat
from prorl_mq.store.layout.keys import named_lane
from prorl_mq.store.store import Store
from prorl_mq.store.workers import WorkerStatus, living, unfollowed

QUARANTINE: Final = "quarantine:"
WHY: Final = "|why"


class Abilities(NamedTuple):
    """Living workers, the data sources behind each digest that they may name, and the open breakers of these."""

    workers: Sequence[WorkerStatus]
    sets: Mapping[str, Collection[str]]
    shut: Sequence[Shared] = ()
    quarantined: Mapping[str, str] = {}  # data source → why

    def has(self, worker: WorkerStatus, family: str) -> bool:
        return self.knows(worker.families, family)

    def knows(self, digest: str, family: str) -> bool:
        """True if the set of a digest has a family; that of an older release, which names none, has all of them."""
        return not digest or family in self.sets.get(digest, ())

    def readers(self, lane: Lane) -> list[WorkerStatus]:
        """The workers of its stage, and of its node where it has one, that read: a draining one does not."""
        near = (each for each in self.workers if each.stage is lane.stage and lane.node in {None, each.node})
        return [worker for worker in near if worker.slots]

    def slots(self, lane: Lane) -> int:
        """Slots of the workers that can take jobs of a lane, or of a stream."""
        return sum(each.slots for each in self.able(lane))

    def able(self, lane: Lane) -> list[WorkerStatus]:
        """The readers of a lane that have its task family."""
        return [each for each in self.readers(lane) if lane.family is None or self.has(each, lane.family)]

    def divided(self, lane: Lane) -> bool:
        """True while some of its readers have its task family and some lack it."""
        found = {lane.family is None or self.has(worker, lane.family) for worker in self.readers(lane)}
        return len(found) > 1

    def why_shut(self, tenant: str, family: str) -> str:
        """Empty while a tenant's groups of a task family are admitted."""
        if family in self.quarantined:
            return why_quarantined(family, self.quarantined[family])
        found = (each for each in self.shut if (each.key.tenant, each.key.name) == (tenant, family))
        return next((f"waits: {each.text}" for each in found), "")

    def why_waits(self, lane: Lane) -> str:
        """Empty while somebody can take the jobs of a lane."""
        if lane.stage is Stage.INIT and (why := unfollowed(self.workers, self.able(lane))):
            return why
        if lane.family is None or self.slots(lane) or not self.readers(lane._replace(family=None)):
            return ""
        where = f" on node {lane.node}" if lane.node else ""
        return (
            f"waits: no living {lane.stage} worker{where} has the task family {lane.family!r}: "
            "start one that has it, or restart workers after installing it"
        )


def digest_of(families: Iterable[str]) -> str:
    """The name under which a set of families is announced."""
    return hashlib.blake2b(msgspec.msgpack.encode(sorted(families)), digest_size=8).hexdigest()


async def abilities(store: Store, workers: Sequence[WorkerStatus] | None = None) -> Abilities:
    """Of all workers that live now, or of those given."""
    row, failing = await store.read_many([("HGETALL", store.keys.families), ("HGETALL", store.keys.breakers)])
    sets = {name.decode(): frozenset(_decode(packed)) for name, packed in zip(row[::2], row[1::2], strict=True)}
    known = breakers.read(failing, await store.now_ms()).values() if failing else ()
    shut = [each for each in known if each.open and each.key.stage]
    return Abilities(await living(store) if workers is None else workers, sets, shut, _quarantined(failing))


async def quarantined(store: Store) -> dict[str, str]:
    """The data sources whose groups wait in their backlog until somebody releases them, and why."""
    return _quarantined(await store.read("HGETALL", store.keys.breakers))


async def quarantine(store: Store, why: Mapping[str, str]) -> None:
    """Keeps groups of these data sources in their backlog. What has begun continues."""
    pairs = [each for source, text in why.items() for each in (_held(source), text)]
    await store.write("HSET", store.keys.breakers, *pairs, repeat=Repeat.SAME)


async def release(store: Store, sources: Collection[str]) -> list[str]:
    """Lets groups of these data sources begin; those that were in quarantine."""
    held = [each for each in await quarantined(store) if each in sources]
    if held:
        await store.write("HDEL", store.keys.breakers, *map(_held, held), repeat=Repeat.SAME)
    return held


def _held(source: str) -> str:
    """A field beside those of breakers, which leave it alone: it is no breaker's plain name."""
    return f"{QUARANTINE}{source}{WHY}"


def _quarantined(row: Sequence[bytes]) -> dict[str, str]:
    fields = {name.decode(): why.decode() for name, why in zip(row[::2], row[1::2], strict=True)}
    return {name[len(QUARANTINE) : -len(WHY)]: why for name, why in fields.items() if name.startswith(QUARANTINE)}


def why_quarantined(source: str, why: str) -> str:
    """Of a data source in quarantine, for people."""
    return f"waits: {source} is in quarantine ({why}): repair it, then `prorl-mq task release {source}`"


async def look(store: Store) -> frozenset[Lane]:
    """The lanes of task families that there are now; the store keeps them in mind for `stream_for`."""
    names = await store.read("SMEMBERS", store.keys.family_lanes)
    store.family_lanes = frozenset(named_lane(name.decode()) for name in names)
    return store.family_lanes


async def known(store: Store, digest: str) -> bool:
    """True if a set of families is spelt out."""
    return bool(await store.read("HEXISTS", store.keys.families, digest))


async def lengths(store: Store, lanes: Sequence[Lane]) -> dict[Lane, int]:
    """Entries of each lane, queued and leased."""
    counts = await store.read_many([("XLEN", store.keys.stage(*lane)) for lane in lanes])
    return {lane: int(count) for lane, count in zip(lanes, counts, strict=True)}


async def load(store: Store, sources: Iterable[str]) -> dict[str, Schema]:
    """The schemas of data sources. Raises `UnknownDataSource` with the nearest known name, or `NoWorkersYet`."""
    wanted = sorted(set(sources))
    if not wanted:
        return {}
    key, names = store.keys.schemas, list[bytes]()
    found = await store.read("HMGET", key, *wanted)
    if None in found:  # again, with all names at once: a worker may announce it between two reads
        found, names = await store.read_at_once([("HMGET", key, *wanted), ("HKEYS", key)])
    schemas: dict[str, Schema] = {}
    for source, packed in zip(wanted, found, strict=True):
        if packed is None:
            known = [name.decode() for name in names]
            if not known:
                raise NoWorkersYet(
                    f"no worker has started so far, so the data source {source!r} is not known: start workers; what "
                    "waits for them is sent again by our clients"
                )
            hint = nearest(source, known)
            raise UnknownDataSource(
                f"no worker has announced the data source {source!r}: {hint}; "
                "a worker announces its handlers when it starts, and logs which extra brings one that it lacks"
            )
        schemas[source] = msgspec.msgpack.decode(packed, type=Schema)
    return schemas


_decode = msgspec.msgpack.Decoder(list[str]).decode
