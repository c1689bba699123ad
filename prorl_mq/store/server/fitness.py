"""Checks that a Redis server can carry the guarantees."""

from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from prorl_mq.clock import monotonic
from prorl_mq.errors import ServerUnfit
from prorl_mq.rules.memory import Memory
from prorl_mq.store.server.connection import ask, patiently
from prorl_mq.store.store import Store

OLDEST = (7, 0)
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
    if server.get("redis_mode") == "cluster":
        warnings.append("it runs as a cluster: a namespace lies on one node of it")
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        faults.append(f"maxmemory-policy is {policy}: it could evict accepted work; set it to noeviction")
    persistence = await info(redis, "persistence")
    if persistence.get("aof_enabled") != "1":
        warnings.append("appendonly is off: a restart of Redis loses what was accepted since its last snapshot")
    if faults:
        raise ServerUnfit("this Redis server cannot be used: " + "; ".join(faults))
    return warnings


async def pressure(redis: Redis) -> float:
    """The used share of maxmemory, 0.0 where there is no limit."""
    return (await _memory(redis)).share


async def memory(store: Store) -> Memory:
    """The server's memory, through an outage of Redis: a moment old at most."""
    used, limit, good_until = store.memory
    if monotonic() > good_until:
        used, limit = await patiently(lambda: _memory(store.redis), outage_ms=store.outage_ms)
        store.memory = used, limit, monotonic() + LOOK_S
    return Memory(used, limit)


async def _memory(redis: Redis) -> Memory:
    about = await info(redis, "memory")
    return Memory(int(about.get("used_memory", "0")), int(about.get("maxmemory", "0")))
