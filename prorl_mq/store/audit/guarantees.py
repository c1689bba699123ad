"""Facts on which a service's guarantees rest, read from the running server and the workers that are alive."""

from typing import Final, NamedTuple

from prorl_mq.rules import memory
from prorl_mq.schema.ids import RunRef
from prorl_mq.schema.messages import Stage
from prorl_mq.schema.settings import RunSettings
from prorl_mq.store import run_settings, runs
from prorl_mq.store.server import fitness
from prorl_mq.store.store import Store
from prorl_mq.store.workers import living

WAITAOF_FROM: Final = (7, 2)
WEAKER: Final = ("none", "hard", "watchdog")  # the limits of a node are those of its weakest worker


class ServerFacts(NamedTuple):
    """Redis's part. Texts are empty where this user may not read them."""

    appendonly: bool
    appendfsync: str
    syncs_in_rewrites: bool  # no-appendfsync-on-rewrite is off
    late_fsyncs: int  # that kept a write waiting since the server started
    memory_bytes: int
    memory_limit_bytes: int  # 0: none
    policy: str  # of eviction
    master: str  # that this server is a replica of; empty: it is a master
    replicas: int
    replicas_needed: int  # for a write to be accepted
    acks: int  # replicas that confirm what a trainer relies on; 0: none
    waitaof: bool  # a client can wait until a write is on disk
    directory: str  # of its data
    process: int  # its id on its host


class Facts(NamedTuple):
    """Facts that the guarantees of this service rest on."""

    server: ServerFacts
    unacked_bytes: int  # that the run with the largest bound may hold
    epoch: int
    opened_ms: int
    now_ms: int
    offset_ms: int  # that Redis's clock is corrected by
    workers: dict[Stage, int]
    limits: dict[str, str]  # of sandboxes, by node: hard, watchdog or none
    families: tuple[str, ...]


async def read(store: Store) -> Facts:
    """Costs some round trips, whatever the service holds."""
    workers, clock, known = await living(store), await store.clock(), await runs.known(store)
    families = await store.read("HKEYS", store.keys.schemas)
    limits: dict[str, str] = {}
    for worker in workers:
        kind = "none" if worker.sandbox == "none" else worker.limits or "watchdog"
        limits[worker.node] = max(kind, limits.get(worker.node, "none"), key=WEAKER.index)
    about = await server(store)
    return Facts(
        server=about,
        unacked_bytes=await _bound(store, known, memory.Memory(about.memory_bytes, about.memory_limit_bytes)),
        epoch=clock.number,
        opened_ms=clock.opened_ms,
        now_ms=clock.now_ms,
        offset_ms=clock.offset_ms,
        workers={stage: sum(worker.stage is stage for worker in workers) for stage in Stage},
        limits=limits,
        families=tuple(sorted(name.decode() for name in families)),
    )


async def server(store: Store) -> ServerFacts:
    """Facts that the server tells about itself."""
    redis = store.redis
    persistence, used = await fitness.info(redis, "persistence"), await fitness.info(redis, "memory")
    replication, about = await fitness.info(redis, "replication"), await fitness.info(redis, "server")
    version = tuple(int(part) for part in about.get("redis_version", "0.0").split(".")[:2])
    appendonly = persistence.get("aof_enabled") == "1"
    given = await fitness.configured(redis, "appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write", "dir")
    return ServerFacts(
        appendonly=appendonly,
        appendfsync=given.get("appendfsync", ""),
        syncs_in_rewrites=given.get("no-appendfsync-on-rewrite") != "yes",
        late_fsyncs=int(persistence.get("aof_delayed_fsync", 0)),
        memory_bytes=int(used["used_memory"]),
        memory_limit_bytes=int(used.get("maxmemory", 0)),
        policy=used.get("maxmemory_policy", "noeviction"),
        master=await fitness.master(redis),
        replicas=int(replication.get("connected_slaves", 0)),
        replicas_needed=int(given.get("min-replicas-to-write", 0)),
        acks=int(await store.read("HGET", store.keys.epoch, "acks") or 0),
        waitaof=appendonly and max(version, _valkey(about)) >= WAITAOF_FROM,
        directory=given.get("dir", ""),
        process=int(about.get("process_id", 0)),
    )


async def _bound(store: Store, known: list[RunRef], there: memory.Memory) -> int:
    book = await run_settings.book(store)
    settings = [book.run(run) for run in known] or [RunSettings()]
    return max(memory.unacked_limit(each, there) for each in settings)


def _valkey(about: dict[str, str]) -> tuple[int, ...]:
    """Valkey says an old version of Redis beside its own."""
    return tuple(int(part) for part in about.get("valkey_version", "0.0").split(".")[:2])
