"""Stage streams: made with their consumer group, and read."""

from collections.abc import Iterable, Sequence
from typing import Any

from redis.asyncio import Redis

from prorl_mq.schema.ids import EntryId, JobRef
from prorl_mq.schema.items import Entry
from prorl_mq.schema.messages import Stage
from prorl_mq.store.connection import ask
from prorl_mq.store.keys import GROUP, Keys
from prorl_mq.store.scripts import script


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
    return _entries(await ask(redis, *command, *(">" for _ in streams)))


async def read_again(redis: Redis, consumer: str, streams: list[str], *, count: int) -> dict[str, list[Entry]]:
    """What this consumer has read and not committed, oldest first, at most `count` from each stream."""
    zeros = ["0"] * len(streams)
    return _entries(
        await ask(redis, "XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, "STREAMS", *streams, *zeros)
    )


def _entries(reply: Sequence[Any] | None) -> dict[str, list[Entry]]:
    """By stream. An entry that was deleted while it was pending has no fields: nothing stands behind it."""
    return {
        stream.decode(): [
            Entry(JobRef(fields[1].decode()), EntryId(entry.decode())) for entry, fields in entries if fields
        ]
        for stream, entries in reply or ()
    }
