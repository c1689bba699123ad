"""Images of sandboxes: what each node has of them, which jobs name them, and who fetches a blob.

A blob is fetched under a lease of its own (`Store.hold`), one for each storage that nodes share.
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.lifecycle import State
from prorl_mq.store import jobs
from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store

KEPT_MS: Final = 7 * 24 * 3600 * 1000
SWEPT: Final = 1_000  # jobs in one look
DUTY: Final = "images"


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of an image on one node. `key` is the cache's name for it, `name` the one that jobs say."""

    key: str
    name: str
    node: str
    state: Literal["fetching", "unpacking", "ready", "failed"]
    ms: int  # when this was noted, by Redis's clock
    done: int = 0  # bytes
    total: int = 0  # bytes; 0: not known yet
    rate: float = 0.0  # bytes a second
    why: str = ""  # it failed
    final: bool = False  # trying again does not help


async def note(store: Store, record: ImageRecord) -> None:
    """Notes what a node has of an image; the newest record stays."""
    await store.write_many([
        ("HSET", store.keys.images, _field(record.key, record.node), encode(record)),
        ("PEXPIRE", store.keys.images, KEPT_MS),
    ])  # fmt: skip


async def drop(store: Store, keys: Collection[str], node: str) -> None:
    """A node has these no longer."""
    if keys:
        await store.write("HDEL", store.keys.images, *(_field(key, node) for key in keys), repeat=Repeat.SAME)


async def look(store: Store, key: str, nodes: Sequence[str]) -> list[ImageRecord]:
    """State of an image on each of some nodes; those that have noted nothing are left out."""
    if not nodes:
        return []
    rows = await store.read("HMGET", store.keys.images, *(_field(key, node) for node in nodes))
    return [decode(row, ImageRecord) for row in rows if row is not None]


async def all_of(store: Store) -> list[ImageRecord]:
    """Of all nodes: for people."""
    found = await store.read("HGETALL", store.keys.images)
    return [decode(row, ImageRecord) for row in found[1::2]]


async def pin(store: Store, ref: JobRef, key: str) -> None:
    """Notes that a job names an image, which stays until the job is over; a job may name several."""
    await store.write("HSET", store.keys.image_jobs, f"{ref} {key}", "", repeat=Repeat.SAME)


async def pinned(store: Store) -> set[str]:
    """Keys of images that jobs name which are not over; forgets those of the others."""
    pins: dict[JobRef, set[str]] = {}
    for field in (await store.read("HGETALL", store.keys.image_jobs))[::2]:
        ref, _, key = field.decode().partition(" ")
        pins.setdefault(JobRef(ref), set()).add(key)
    kept: set[str] = set()
    refs = list(pins)
    for at in range(0, len(refs), SWEPT):
        some = refs[at : at + SWEPT]
        holders = await jobs.holders(store, some)
        over = [ref for ref, now in zip(some, holders, strict=True) if now is None or now.state == State.DONE]
        kept.update(*(pins[ref] for ref in {*some}.difference(over)))
        if over:
            fields = [f"{ref} {key}" for ref in over for key in pins[ref]]
            await store.write("HDEL", store.keys.image_jobs, *fields, repeat=Repeat.SAME)
    return kept


def _field(key: str, node: str) -> str:
    return f"{key} {node}"
