"""Stage streams: made with their consumer group, and read."""

from collections.abc import Iterable, Sequence

from redis.asyncio import Redis

from prorl_mq.schema.ids import EntryId, JobRef
from prorl_mq.schema.items import Entry
from prorl_mq.schema.messages import Stage
from prorl_mq.store.connection import ask
from prorl_mq.store.core import Repeat
from prorl_mq.store.keys import GROUP, Keys
from prorl_mq.store.scripts import script
from prorl_mq.store.store import Store


async def ensure(redis: Redis, streams: Iterable[str]) -> None:
    """Makes streams and their group where they are missing; nothing that is already on a stream is skipped."""
    await script("ensure")(redis, list(streams), {"consumers": GROUP})


def shared(keys: Keys) -> list[str]:
    """The three streams that every deployment has."""
    return [keys.stage(stage) for stage in Stage]


async def read(
    redis: Redis, consumer: str, streams: list[str], *, count: int, block_ms: int | None
) -> dict[str, list[Entry]]:
    """New entries by stream, at most `count` from each. `block_ms` None does not wait; source: XREADGROUP."""
    wait = () if block_ms is None else ("BLOCK", block_ms)
    command = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, *wait, "STREAMS", *streams)
    reply = await ask(redis, *command, *(">" for _ in streams))
    return {
        stream.decode(): [Entry(JobRef(fields[1].decode()), EntryId(entry.decode())) for entry, fields in entries]
        for stream, entries in reply or ()
    }


async def drop(store: Store, stream: str, entries: Sequence[EntryId]) -> None:
    """Removes entries of a stage stream behind which no job stands."""
    if entries:
        await store.write_many([("XACK", stream, GROUP, *entries), ("XDEL", stream, *entries)])


async def trim_cancels(store: Store, *, older_than_ms: int) -> None:
    """Removes messages about cancelled jobs that every worker has had time to read."""
    await store.write("XTRIM", store.keys.cancels, "MINID", older_than_ms, repeat=Repeat.SAME)
