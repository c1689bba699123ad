"""The two bells: which runs have something new to admit, and which DAPO batches have changed.

A duty takes the marks when it looks. Taking them is a write that must not be repeated: a lost reply may have had marks
in it. So it is answered with None, and whoever waits looks at everything.
"""

from contextlib import suppress
from typing import Any, Final

from redis.exceptions import OutOfMemoryError

from prorl_mq.errors import RedisUnavailable
from prorl_mq.schema.ids import BatchRef, RunRef
from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store

AT_ONCE: Final = 1_024  # marks that one look takes; the rest ring again


async def to_admit(store: Store, *, within_s: float = 0.0) -> list[RunRef] | None:
    """Runs whose backlog has got something since the last call; waits up to `within_s` for the first."""
    found = await _taken(store, store.keys.admit_bell, within_s)
    return None if found is None else [RunRef(name) for name in found]


async def to_draw(store: Store, *, within_s: float) -> list[BatchRef] | None:
    """DAPO batches that have changed since the last call; waits up to `within_s` for the first."""
    found = await _taken(store, store.keys.draw_bell, within_s)
    return None if found is None else [BatchRef(name) for name in found]


async def ring_draw(store: Store, batch: BatchRef) -> None:
    """Rings for the drawing duty. A full Redis may refuse it: the duty looks at every batch now and then."""
    with suppress(OutOfMemoryError):
        await store.write("ZADD", store.keys.draw_bell, 0, batch, repeat=Repeat.SAME)


async def _taken(store: Store, bell: str, within_s: float) -> list[str] | None:
    try:
        marks = await (_waited(store, bell, within_s) if within_s > 0 else _there(store, bell))
    except RedisUnavailable:
        return None
    return [name.decode() for name in marks]


async def _there(store: Store, bell: str) -> list[bytes]:
    row: list[bytes] = await store.write("ZPOPMIN", bell, AT_ONCE, repeat=Repeat.ONCE)
    return row[::2]


async def _waited(store: Store, bell: str, within_s: float) -> list[bytes]:
    command = ("BZMPOP", within_s, 1, bell, "MIN", "COUNT", AT_ONCE)
    reply: Any = await store.write(*command, repeat=Repeat.ONCE, blocks=True)
    return [name for name, _ in reply[1]] if reply else []
