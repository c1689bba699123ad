"""The pools of inference backends: a min-heap of jobs in flight, and what is known of each backend."""

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from prorl_mq import chance
from prorl_mq.errors import NotFound
from prorl_mq.rules import breaker
from prorl_mq.rules.breaker import Breaker
from prorl_mq.rules.reach import Reach
from prorl_mq.rules.routing.pressure import CacheLimit, read_limit
from prorl_mq.rules.routing.room import Seat, read_seat
from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.ids import public
from prorl_mq.schema.policy import Announced, BackendPolicy, BackendProgress, PolicyStatus
from prorl_mq.store import policy as policy_versions
from prorl_mq.store.store import Store

log = logging.getLogger("prorl_mq.store")
COLLISIONS: Final = 64
FACTS: Final = frozenset(
    {"out", "limit", "since", "breaker", "version", "note", "broken", "room", "served"}
)  # kept as `address|fact`
Transition = Callable[[Breaker, int], Breaker]  # with Redis's ms


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts that a worker needs to call a backend. Without a protocol the worker probes for it."""

    address: str
    protocol: str | None = None
    model: str | None = None
    adapter: str | None = None  # a LoRA adapter of the model: the policy of its pool; named ADAPTER@VERSION where known
    limit: int | None = None  # jobs in flight at most
    reach: Reach | None = None  # of the tenant who added it; None: the operator did, and it is called as it is
    places: tuple[str, ...] = ()  # HOST:PORT of its name and of each address behind it, when it was added


class BackendStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A backend as the pool sees it."""

    address: str
    in_flight: int
    state: str  # ready, draining; left: it is gone, and jobs still hold it
    protocol: str | None = None
    model: str | None = None
    adapter: str | None = None
    limit: int | None = None
    breaker: str = "closed"  # open: it gets no jobs; half_open: it gets one, on trial
    alive: bool = True  # it answers its health checks
    version: str | None = None  # of its weights, where it tells
    served: str | None = None  # the model that it names, and where it was loaded from, where it tells
    note: str | None = None  # what is wrong with it


class SharedState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one backend that all processes know."""

    info: BackendInfo | None = None  # None: it has left, and jobs still hold it
    breaker: Breaker = breaker.CLOSED
    version: str | None = None
    served: str | None = None  # the model that it names
    note: str | None = None  # what a worker found wrong with it
    broken: str | None = None  # its weights are in doubt: no turn may run on it until they are loaded
    draining: bool = False
    room: CacheLimit | None = None  # what its sessions may need, where the pool is short of room


class Seats(NamedTuple):
    """The ledger of a pool at one moment: the seats of its sessions, by the token of their attempt."""

    stamp: str = ""  # of its last change; empty: it has none
    now_ms: int = 0  # the service's time
    seats: Mapping[str, Seat] = {}


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one moment."""

    policy: Announced
    backends: Mapping[str, SharedState]

    def unfit(self, address: str) -> str | None:
        """Why calls to a backend are given up, if they are."""
        seen = self.backends.get(address)
        if seen is None:
            return None  # it has left: what runs there may end
        return "it does not answer its health checks" if seen.breaker.dead else seen.broken

    def behind(self, address: str) -> bool:
        """True if no turn may start on a backend until it has the announced weights."""
        seen = self.backends.get(address)
        return self.policy.floor is not None and seen is not None and self.policy.lags(seen.version)

    @property
    def limits(self) -> dict[str, CacheLimit]:
        """Limits of all backends that have one. Without any, no turn waits for room."""
        return {address: seen.room for address, seen in self.backends.items() if seen.room}

    @property
    def takers(self) -> frozenset[str]:
        """Backends that a session may move to."""
        return frozenset(at for at, seen in self.backends.items() if not _fault(seen) and not self.behind(at))


async def add(
    store: Store,
    pool: str,
    address: str,
    *,
    protocol: str | None = None,
    model: str | None = None,
    adapter: str | None = None,
    limit: int | None = None,
) -> str:
    """Joins a backend to a pool as the operator does, or changes what is known of it: `joined` or `known`."""
    return await join(
        store,
        pool,
        BackendInfo(address=address.rstrip("/"), protocol=protocol, model=model, adapter=adapter, limit=limit),
    )


async def join(store: Store, pool: str, about: BackendInfo) -> str:
    """`joined` or `known`."""
    return await store.join(pool, about.address, encode(about), limit=about.limit or 0)


async def remove(store: Store, pool: str, address: str, *, drain: bool) -> str:
    """Takes a backend out: `left` or `draining`. Raises `NotFound`."""
    answer = await store.leave(pool, address.rstrip("/"), reason="removed", drain=drain)
    if answer == "unknown":
        raise NotFound(f"pool {public(pool)!r} has no backend {address!r}")
    return answer


async def names(store: Store) -> list[str]:
    """Every pool that has had a backend, with its tenant."""
    return sorted(name.decode() for name in await store.read("SMEMBERS", store.keys.pools))


async def loads(store: Store, pool: str) -> dict[str, int]:
    """Jobs that hold each backend, also those that have left; the least loaded first."""
    heap = await store.read("ZRANGE", store.keys.pool(pool), 0, -1, "WITHSCORES")
    return {at.decode(): int(load) for at, load in zip(heap[::2], heap[1::2], strict=True)}


async def listing(store: Store, pool: str) -> list[BackendStatus]:
    """The backends of a pool, least loaded first."""
    held = await loads(store, pool)
    now_ms = await store.now_ms()
    found = (await view(store, pool)).backends
    return [_status(address, load, found.get(address, SharedState()), now_ms) for address, load in held.items()]


async def view(store: Store, pool: str) -> PoolView:
    """A pool's policy and backends as they are now."""
    keys = store.keys
    policy, row = await store.read_many(
        [("HMGET", keys.policy(pool), *policy_versions.FIELDS), ("HGETALL", keys.pool_info(pool))]
    )
    fields: dict[str, dict[str, bytes]] = {}
    for name, value in zip(row[::2], row[1::2], strict=True):
        address, fact = _parted(name.decode(errors="replace"))
        fields.setdefault(address, {})[fact] = value
    found = {address: _readable(pool, address, facts) for address, facts in fields.items() if "" in facts}
    seen = {address: state for address, state in found.items() if state is not None}
    return PoolView(policy=policy_versions.read_announced(policy), backends=seen)


async def observe(
    store: Store,
    pool: str | None,
    address: str,
    seen: Breaker,
    transition: Transition,
    facts: Mapping[str, str] | None = None,
) -> Breaker:
    """Moves a backend's breaker by what was observed, and writes facts down. `seen`: the breaker as last looked at.
    Answers the breaker as it is then. Without a pool, of an image or a task family, as `Store.observe` says.

    Others observe the same at the same time; after `COLLISIONS` of them, they have said enough.
    """
    for _ in range(COLLISIONS):
        after = transition(seen, await store.now_ms())
        if after == seen and not facts:
            return seen
        if after not in (seen, breaker.CLOSED):
            after = after._replace(stamp=chance.number(30))
        restart = seen.openings > 0 and after.openings == 0
        answer = await store.observe(
            pool, address, was=seen.text, breaker=after.text, restart=restart, facts=facts or {}
        )
        if answer[0] != b"changed":
            return after
        seen = breaker.parse(answer[1].decode())
    return seen


def call_failed(seen: Breaker, now_ms: int) -> Breaker:
    return breaker.failed(seen, now_ms, chance.fraction())


def call_succeeded(seen: Breaker, _now_ms: int) -> Breaker:
    return breaker.succeeded(seen)


def probe_missed(seen: Breaker, now_ms: int) -> Breaker:
    return breaker.missed(seen, now_ms)


def probe_answered(seen: Breaker, _now_ms: int) -> Breaker:
    return breaker.answered(seen)


async def seat(store: Store, pool: str, known: Seats, rows: Mapping[str, Seat | None]) -> tuple[Seats, bool]:
    """Writes seats of a pool's ledger down, and takes those out that are None. Answers the ledger as it is then, and
    whether that holds the rows: it does not where another process has changed it since it was `known`.
    Without rows it only looks. Rows that cannot be read count as nothing.
    """
    stamp = str(chance.number(53)) if rows else known.stamp
    written = [(token, each.text if each else "") for token, each in rows.items()]
    status, now_ms, *found = await store.seat(pool, seen=known.stamp, stamp=stamp, seats=written)
    if status != b"changed":
        seats = {token: each for token, each in {**known.seats, **rows}.items() if each}
        return Seats(stamp, int(now_ms), seats), True
    texts = [each.decode(errors="replace") for each in found[0]]
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    stamp = fields.pop("stamp", "")
    read = {token: read_seat(text) for token, text in fields.items()}
    return Seats(stamp, int(now_ms), {token: each for token, each in read.items() if each}), False


def nobody(pool: str, view: PoolView) -> str:
    """Why a pool has no backend to give, each one with its fault."""
    faults = [f"{address} is {fault}" for address, seen in sorted(view.backends.items()) if (fault := _fault(seen))]
    if len(faults) < len(view.backends):
        return f"no free backend in pool {public(pool)!r}"
    return f"no living backend in pool {public(pool)!r}: {', '.join(faults) or 'it has none'}"


def _fault(seen: SharedState) -> str:
    if seen.info is None or seen.draining:
        return "leaving"
    if seen.breaker.dead:
        return "dead"
    if seen.broken:
        return "without its weights"
    return "failing" if seen.breaker.openings else ""


async def policy_status(store: Store, pool: str) -> PolicyStatus:
    """The policy that was announced last, and what became of it on each backend."""
    now = await view(store, pool)
    far = await policy_versions.progress(store, pool)
    rows = []
    for address, seen in sorted(now.backends.items()):
        at = far.get(address, BackendProgress())
        told = BackendPolicy(
            address=address,
            serves=seen.version,
            served=seen.served,
            step=at.step or None,
            tries=at.tries,
            error=at.error or None,
        )
        rows.append(told)
    said = now.policy
    return PolicyStatus(
        pool=public(pool), version=said.version, mode=said.mode, weights=said.weights or None, backends=rows
    )


def _parted(field: str) -> tuple[str, str]:
    """The address and the fact of a field; an earlier release took addresses with a `|` of their own."""
    address, _, fact = field.rpartition("|")
    return (address, fact) if fact in FACTS else (field, "")


def _readable(pool: str, address: str, facts: Mapping[str, bytes]) -> SharedState | None:
    """None for a backend whose facts cannot be read: the others of the pool are served."""
    try:
        return _seen(facts)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        _tell_once(pool, address, repr(error))
        return None


@lru_cache(1_024)
def _tell_once(pool: str, address: str, why: str) -> None:
    log.warning("pool %r: backend %r is left out, its facts cannot be read (%s): remove it", pool, address, why)


def _seen(facts: Mapping[str, bytes]) -> SharedState:
    text = {name: value.decode() for name, value in facts.items() if name}
    return SharedState(
        info=decode(facts[""], BackendInfo),
        breaker=breaker.parse(text.get("breaker", "")),
        version=text.get("version"),
        served=text.get("served"),
        note=text.get("note"),
        broken=text.get("broken"),
        draining="out" in text,
        room=read_limit(text["room"]) if "room" in text else None,
    )


def _status(address: str, load: int, seen: SharedState, now_ms: int) -> BackendStatus:
    info = seen.info or BackendInfo(address=address)
    return BackendStatus(
        address=address,
        in_flight=load,
        state="left" if seen.info is None else "draining" if seen.draining else "ready",
        protocol=info.protocol,
        model=info.model,
        adapter=info.adapter,
        limit=info.limit,
        breaker=seen.breaker.state(now_ms),
        alive=not seen.breaker.dead,
        version=seen.version,
        served=seen.served,
        note=seen.broken or seen.note or _short(seen),
    )


def _short(seen: SharedState) -> str | None:
    if seen.room is None:
        return None
    behind = ", and it falls behind" if seen.room.behind else ""
    return f"the pool is short of room: its sessions may need {seen.room.tokens} tokens{behind}"
