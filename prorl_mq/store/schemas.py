"""The schemas of task families, as workers announce them."""

from collections.abc import Iterable, Mapping

import msgspec

from prorl_mq.errors import UnknownDataSource
from prorl_mq.schema.task_schema import Schema, nearest
from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store


async def announce(store: Store, schemas: Mapping[str, Schema]) -> None:
    """Makes data sources known to the ingress."""
    for source, schema in schemas.items():
        packed = msgspec.msgpack.encode(schema)
        if await store.read("HGET", store.keys.schemas, source) != packed:  # a full server takes no new one
            await store.write("HSET", store.keys.schemas, source, packed, repeat=Repeat.SAME)


async def load(store: Store, sources: Iterable[str]) -> dict[str, Schema]:
    """The schemas of data sources. Raises `UnknownDataSource` with the nearest known name."""
    wanted = sorted(set(sources))
    if not wanted:
        return {}
    found = await store.read("HMGET", store.keys.schemas, *wanted)
    schemas: dict[str, Schema] = {}
    for source, packed in zip(wanted, found, strict=True):
        if packed is None:
            known = [name.decode() for name in await store.read("HKEYS", store.keys.schemas)]
            hint = nearest(source, known)
            raise UnknownDataSource(
                f"no worker has announced the data source {source!r}: {hint}; "
                "a worker announces its handlers when it starts"
            )
        schemas[source] = msgspec.msgpack.decode(packed, type=Schema)
    return schemas
