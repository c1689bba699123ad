"""The pools of inference backends: a min-heap of jobs in flight, and what is known of each backend."""

import msgspec

from prorl_mq.broker import Broker
from prorl_mq.codec import decode, encode
from prorl_mq.errors import NotFound
from prorl_mq.ids import public


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker needs to call a backend. Without a protocol the worker probes for it."""

    address: str
    protocol: str | None = None
    model: str | None = None
    limit: int | None = None  # jobs in flight at most


class BackendStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A backend as the pool sees it."""

    address: str
    in_flight: int
    state: str  # ready, draining
    protocol: str | None = None
    model: str | None = None


async def add(
    broker: Broker,
    pool: str,
    address: str,
    *,
    protocol: str | None = None,
    model: str | None = None,
    limit: int | None = None,
) -> str:
    """Joins a backend to a pool, or changes what is known of it: `joined` or `known`."""
    about = BackendInfo(address=address.rstrip("/"), protocol=protocol, model=model, limit=limit)
    return await broker.join(pool, about.address, encode(about), limit=limit or 0)


async def remove(broker: Broker, pool: str, address: str, *, drain: bool) -> str:
    """Takes a backend out: `left` or `draining`. Raises `NotFound`."""
    answer = await broker.leave(pool, address.rstrip("/"), reason="removed", drain=drain)
    if answer == "unknown":
        raise NotFound(f"pool {public(pool)!r} has no backend {address!r}")
    return answer


async def listing(broker: Broker, pool: str) -> list[BackendStatus]:
    """The backends of a pool, least loaded first."""
    heap = await broker.read("ZRANGE", broker.keys.pool(pool), 0, -1, "WITHSCORES")
    row = await broker.read("HGETALL", broker.keys.pool_info(pool))
    about = dict(zip(row[::2], row[1::2], strict=True))
    statuses = []
    for address, load in zip(heap[::2], heap[1::2], strict=True):
        info = decode(about[address], BackendInfo) if address in about else BackendInfo(address=address.decode())
        state = "draining" if address + b"|out" in about else "ready"
        statuses.append(
            BackendStatus(
                address=info.address, in_flight=int(load), state=state, protocol=info.protocol, model=info.model
            )
        )
    return statuses


async def announce(broker: Broker, pool: str, version: int, mode: str) -> None:
    """Records the policy version that the trainer says a pool serves from now on."""
    await broker.read("HSET", broker.keys.policy(pool), "version", version, "mode", mode)


async def announced(broker: Broker, pool: str) -> int | None:
    """The policy version last announced."""
    found = await broker.read("HGET", broker.keys.policy(pool), "version")
    return int(found) if found is not None else None
