"""Checks that a Redis server can carry the guarantees."""

from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from prorl_mq.clock import monotonic
from prorl_mq.errors import ServerUnfit
from prorl_mq.rules.memory import Memory
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import ask, passing, patiently
from prorl_mq.store.store import Store

OLDEST = (7, 0)
PROBES: Final = 3  # writes whose way to the disk is waited for
PROBES_S: Final = 1.5  # with one fsync a second they take at least two
LOOK_S: Final = 0.25  # how long a look at the memory is good for


async def info(redis: Redis, section: str) -> dict[str, str]:
    """One section of INFO."""
    text = (await ask(redis, "INFO", section)).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


async def configured(redis: Redis, *names: str) -> dict[str, str]:
    """Settings of the server; none of them if this user may not read them. Source: CONFIG GET."""
    try:
        row = await ask(redis, "CONFIG", "GET", *names)
    except ResponseError:
        return {}
    return {name.decode(): value.decode() for name, value in zip(row[::2], row[1::2], strict=True)}


async def start_up(redis: Redis) -> list[str]:
    """Raises `ServerUnfit` with every fault; returns warnings about weaker, allowed settings."""
    server, memory = await info(redis, "server"), await info(redis, "memory")
    faults, warnings = [], []
    version = tuple(int(part) for part in server.get("redis_version", "0.0").split(".")[:2])
    if version < OLDEST:
        faults.append(f"its version is {server.get('redis_version')}; 7.0 or later is needed")
    follows = getattr(redis.connection_pool.connection_class, "in_cluster", False)
    if not follows and (await info(redis, "cluster")).get("cluster_enabled") == "1":
        faults.append(
            "it is a node of a cluster, and not every namespace lies there: give redis+cluster://HOST:PORT,HOST:PORT, "
            "which follows the one that owns the namespace's slot"
        )
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        faults.append(f"maxmemory-policy is {policy}: it could evict accepted work; set it to noeviction")
    persistence = await info(redis, "persistence")
    if persistence.get("aof_enabled") != "1":
        warnings.append("appendonly is off: a restart of Redis loses what was accepted since its last snapshot")
    if faults:
        raise ServerUnfit("this Redis server cannot be used: " + "; ".join(faults))
    return warnings


async def master(redis: Redis) -> str:
    """Address of the server that this one is a replica of; empty for a master."""
    replication = await info(redis, "replication")
    return (
        f"{replication.get('master_host')}:{replication.get('master_port')}" if replication["role"] == "slave" else ""
    )


async def syncs(redis: Redis, keys: Keys, *, replicas: int = 0) -> None:
    """Raises `ServerUnfit` unless WAITAOF answers when the disk has what was written, and no earlier: this server's,
    and those of so many replicas.

    Under `everysec` some servers answer at once (redis/redis#13793; Valkey 9.1, too), which only its speed shows. An
    error that ends by itself is raised as it came.
    """
    mode = "replicated+synced" if replicas else "synced"
    began = monotonic()
    for _ in range(PROBES):
        pipeline = redis.pipeline(transaction=False)
        pipeline.execute_command("SET", keys.duty("waitaof"), "x", "PX", 1000)
        pipeline.execute_command("WAITAOF", 1, replicas, 3000)
        wrote, answer = await pipeline.execute(raise_on_error=False)
        if error := next((each for each in (wrote, answer) if isinstance(each, ResponseError)), None):
            if passing(error):  # it has lost its replicas, say: that says nothing of WAITAOF
                raise error
            server = "Redis 7.2 or later, or Valkey" if replicas else "Redis 8 or later"
            fix = f"it needs WAITAOF ({server}, appendonly yes); or use appendfsync always, and leave the flag out"
            raise ServerUnfit(f"this Redis server cannot be used with --durability {mode}: {error}; {fix}") from error
        if answer[1] < replicas:
            raise ServerUnfit(
                f"--durability {mode} is refused: the disk of a replica does not confirm what it is sent: set "
                "appendonly yes there, and look at its disk"
            )
    if monotonic() - began < PROBES_S:
        raise ServerUnfit(
            f"this Redis server answers WAITAOF at once: with appendfsync always leave out {mode.rpartition('+')[2]}, "
            "which it does not need; with everysec the answer comes before the data is on disk: use Redis 8 or later"
        )


async def pressure(redis: Redis) -> float:
    """The used share of maxmemory, 0.0 where there is no limit."""
    return (await _memory(redis)).share


async def memory(store: Store) -> Memory:
    """The server's memory, through an outage of Redis: a moment old at most, and new where a quarter is used. An old
    look leaves out what jobs have stored since, which are no longer counted as in flight.
    """
    found, good_until = store.memory
    if monotonic() > good_until:
        found = await patiently(lambda: _memory(store.redis), outage_ms=store.outage_ms)
        store.memory = found, monotonic() + (LOOK_S if 4 * found.used < found.limit or not found.limit else 0.0)
    return found


async def _memory(redis: Redis) -> Memory:
    """As the server compares them: what waits for the disk and for replicas does not count for the limit."""
    about = await info(redis, "memory")
    used = int(about.get("used_memory", "0")) - int(about.get("mem_not_counted_for_evict", "0"))
    return Memory(max(used, 0), int(about.get("maxmemory", "0")), int(about.get("total_system_memory", "0")))
