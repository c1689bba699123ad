"""The policy versions of pools as they lie in Redis."""

from collections.abc import Sequence
from typing import Final

from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.policy import Announced, BackendProgress
from prorl_mq.store.store import Store

FIELDS: Final = ("version", "mode", "weights", "history", "id")


def read_announced(row: Sequence[bytes | None]) -> Announced:
    """From the values of `FIELDS`."""
    version, mode, weights, history, announcement = ((value or b"").decode() for value in row)
    pairs = (line.split(" ") for line in history.splitlines())
    return Announced(
        version=int(version) if version else None,
        mode=mode or "keep",
        weights=weights,
        history=[(int(at_ms), int(said)) for at_ms, said in pairs],
        id=announcement,
    )


async def announced(store: Store, pool: str) -> Announced:
    """The last announcement for a pool."""
    return read_announced(await store.read("HMGET", store.keys.policy(pool), *FIELDS))


async def progress(store: Store, pool: str) -> dict[str, BackendProgress]:
    """Progress of each backend with the weights that were announced last."""
    row = await store.read("HGETALL", store.keys.policy_update(pool))
    return {at.decode(): decode(packed, BackendProgress) for at, packed in zip(row[::2], row[1::2], strict=True)}


async def note(store: Store, pool: str, announcement: str, address: str, about: BackendProgress) -> bool:
    """Writes progress down; false when something else was announced meanwhile."""
    return await store.progress(pool, announcement, address, encode(about)) == "noted"
