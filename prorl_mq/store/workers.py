"""Living workers, as their heartbeats announce them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from prorl_mq.rules.turns import Turns
from prorl_mq.schema.ids import public
from prorl_mq.schema.messages import Stage
from prorl_mq.store.store import Store

PAGE: Final = 64  # living workers whose words are read at one look
STALLED_MS: Final = 15_000  # a read is answered within a second, or given up after four


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A living worker process."""

    name: str
    stage: Stage
    node: str
    slots: int
    busy: int
    pid: int
    started_ms: int
    sandbox: str = "none"
    limits: str = ""  # of its sandboxes: hard where control groups hold them, watchdog where a process looks
    free: int = 0  # places without a job; none while it drains
    read_ms: int = 0  # since its last read was answered, while places are free
    families: str = ""  # digest of what it can run (`families`); empty: an older release
    waits: str = ""  # the infrastructure that its jobs wait for
    sight: str = ""  # which pools' models take images (`sees`); empty: no RUN worker, or an older release

    def sees(self, pool: str) -> bool | None:
        """True if its model of a pool, `TENANT:POOL`, takes images; None for an older release: it leaves them out."""
        return self._sign(pool) == "+" if self.sight else None

    def lacks_libraries(self, pool: str) -> bool:
        """True if its model of a pool would take images, and it lacks the libraries for them."""
        return self._sign(pool) == "!"

    def _sign(self, pool: str) -> str:
        signs = {each[1:]: each[0] for each in self.sight.split()}
        return next((signs[name] for name in (pool, public(pool)) if name in signs), signs.get("", "-"))

    @property
    def reads(self) -> bool:
        """False for one that should read and does not, which its heartbeat, a thread of its own, does not show."""
        return not self.free or self.read_ms < STALLED_MS


async def living(store: Store) -> list[WorkerStatus]:
    """Workers whose heartbeat is not overdue."""
    names = await store.read("ZRANGEBYSCORE", store.keys.workers, await store.now_ms(), "+inf")
    return [each for each in await _statuses(store, names) if each]


async def longest_lease_ms(store: Store) -> int:
    """For how long the newest heartbeat holds: about a lease. 0 or less where no worker is alive."""
    row = await store.read("ZRANGE", store.keys.workers, 0, 0, "REV", "WITHSCORES")
    return int(float(row[1])) - await store.now_ms() if row else 0


async def silent(store: Store, *, for_ms: int, limit: int) -> list[str]:
    """Names of workers whose heartbeat is overdue for that long."""
    overdue = await store.now_ms() - for_ms
    found = await store.read("ZRANGEBYSCORE", store.keys.workers, "-inf", overdue, "LIMIT", 0, limit)
    return [name.decode() for name in found]


def slots(workers: Iterable[WorkerStatus], stage: Stage, node: str | None = None) -> int:
    """Slots of a stage that are alive, on one node or on all."""
    return sum(w.slots for w in workers if w.stage is stage and node in {None, w.node})


def unfollowed(workers: Collection[WorkerStatus], of_init: Collection[WorkerStatus]) -> str:
    """Why none of some INIT workers takes a job: one with sandboxes takes what its node's RUN workers can follow.

    Empty where one of them takes jobs, or where there is none.
    """
    if not of_init or any(each.sandbox == "none" or slots(workers, Stage.RUN, each.node) for each in of_init):
        return ""
    nodes = sorted({each.node for each in of_init})
    return f"waits: no living run worker on {', '.join(nodes[:4])} would take it: start prorl-worker --stage run there"


def stalled(workers: Iterable[WorkerStatus], waiting: Mapping[Stage, int]) -> list[WorkerStatus]:
    """Workers that have free places and do not read, though entries of their stage wait. `waiting`: how many."""
    return [worker for worker in workers if waiting.get(worker.stage, 0) > 0 and not worker.reads]


class Roster:
    """The living workers, for a duty that asks again and again.

    Who has come or gone is seen at each look. What the others say of themselves is read `PAGE` workers at a time: with
    thousands of them a change is seen some looks later, and a look costs no more.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, WorkerStatus] = {}
        self._turns = Turns[bytes](PAGE)
        self._counts: list[int] = []

    async def living(self) -> list[WorkerStatus]:
        """All of them, as far as they are known now."""
        store, key = self._store, self._store.keys.workers
        now_ms = await store.now_ms()
        counts = await store.read_many([("ZCARD", key), ("ZCOUNT", key, "-inf", f"({now_ms}")])
        new: list[bytes] = []
        if counts != self._counts or not self._turns.left:
            names = await store.read("ZRANGEBYSCORE", key, now_ms, "+inf")
            new = [name for name in names if name not in self._known]
            self._known = {name: self._known[name] for name in names if name in self._known}
            self._turns.over(names)
            self._counts = counts
        asked = list(dict.fromkeys([*new, *(name for name in self._turns.next() if name in self._known)]))
        for name, status in zip(asked, await _statuses(store, asked), strict=True):
            if status is None:
                self._known.pop(name, None)
            else:
                self._known[name] = status
        return list(self._known.values())


def waits(workers: Iterable[WorkerStatus]) -> list[str]:
    """The infrastructure that jobs wait for, a line a worker."""
    return [f"waits: {worker.waits}, of {worker.name}" for worker in workers if worker.waits]


class Neighbours:
    """The workers of one stage on one node, for somebody who asks again and again.

    What a worker never changes is read once: polling every worker from every worker is O(n²) and overloads Redis.
    """

    def __init__(self, store: Store, stage: Stage, node: str) -> None:
        self._store = store
        self._place = [stage.encode(), node.encode()]
        self._known: dict[bytes, bool] = {}  # name → whether it is one of these

    async def slots(self) -> int:
        """Slots that are alive now."""
        counts = await self._now("slots")
        return sum(int(count or 0) for (count,) in counts.values())

    async def families(self) -> set[str]:
        """Digests of what those that read can run."""
        rows = await self._now("slots", "families")
        return {(digest or b"").decode() for slots, digest in rows.values() if int(slots or 0)}

    async def _now(self, *fields: str) -> dict[bytes, list[bytes | None]]:
        store = self._store
        names = await store.read("ZRANGEBYSCORE", store.keys.workers, await store.now_ms(), "+inf")
        new = [name for name in names if name not in self._known]
        places = await self._ask(new, "stage", "node")
        self._known = {name: self._known.get(name, False) for name in names if name in self._known}
        self._known |= {name: place == self._place for name, place in places.items() if None not in place}
        return await self._ask([name for name, near in self._known.items() if near], *fields)

    async def _ask(self, names: Iterable[bytes], *fields: str) -> dict[bytes, list[bytes | None]]:
        asked = list(names)
        key = self._store.keys.worker
        rows = await self._store.read_many([("HMGET", key(name.decode()), *fields) for name in asked])
        return dict(zip(asked, rows, strict=True))


async def _statuses(store: Store, names: Sequence[bytes]) -> list[WorkerStatus | None]:
    """Status of each; None where its hash has gone."""
    rows = await store.read_many([("HGETALL", store.keys.worker(name.decode())) for name in names])
    return [_status(name.decode(), row) if row else None for name, row in zip(names, rows, strict=True)]


def _status(name: str, row: list[bytes]) -> WorkerStatus:
    fields: dict[str, Any] = {k.decode(): v.decode() for k, v in zip(row[::2], row[1::2], strict=True)}
    return msgspec.convert({"name": name, **fields}, WorkerStatus, strict=False)
