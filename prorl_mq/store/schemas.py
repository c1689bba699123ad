"""The schemas that workers announce: data source → what its handler's payloads look like."""

from collections.abc import Iterable, Mapping

import msgspec
from redis.asyncio import Redis

from prorl_mq.errors import UnknownDataSource
from prorl_mq.schema.task_schema import Schema, nearest
from prorl_mq.store.connection import ask, patiently
from prorl_mq.store.keys import Keys
from prorl_mq.store.store import Store


async def announce(redis: Redis, keys: Keys, schemas: Mapping[str, Schema]) -> None:
    """Makes data sources known to the ingress. A repeat finds what it wrote, and writes nothing."""
    for source, schema in schemas.items():
        packed = msgspec.msgpack.encode(schema)
        if await ask(redis, "HGET", keys.schemas, source) != packed:  # a full server takes no new one
            await ask(redis, "HSET", keys.schemas, source, packed)


async def load(redis: Redis, keys: Keys, sources: Iterable[str]) -> dict[str, Schema]:
    """The schemas of data sources. Raises `UnknownDataSource` with the nearest known name."""
    wanted = sorted(set(sources))
    if not wanted:
        return {}
    found = await ask(redis, "HMGET", keys.schemas, *wanted)
    schemas: dict[str, Schema] = {}
    for source, packed in zip(wanted, found, strict=True):
        if packed is None:
            known = [name.decode() for name in await ask(redis, "HKEYS", keys.schemas)]
            hint = nearest(source, known)
            raise UnknownDataSource(
                f"no worker has announced the data source {source!r}: {hint}; "
                "a worker announces its handlers when it starts"
            )
        schemas[source] = msgspec.msgpack.decode(packed, type=Schema)
    return schemas


async def of_source(store: Store, source: str) -> Schema:
    """The schema of one data source. Raises `UnknownDataSource` with the nearest known name."""
    found = await patiently(lambda: load(store.redis, store.keys, [source]), outage_ms=store.outage_ms)
    return found[source]
