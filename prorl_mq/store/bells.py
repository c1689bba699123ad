"""The two bells: a list that holds a mark while there is something to admit, or a DAPO batch has changed.

Taking the mark is a write that must not be repeated: a lost reply may have had the mark in it. So it counts as a ring,
and whoever waits looks once too often.
"""

from contextlib import suppress

from prorl_mq.errors import RedisUnavailable
from prorl_mq.store.core import Repeat
from prorl_mq.store.store import Store


async def until_admit(store: Store, within_s: float) -> None:
    """Returns when there may be something to admit, at the latest after `within_s`."""
    await _until(store, store.keys.admit_bell, within_s)


async def until_draw(store: Store, within_s: float) -> None:
    """Returns when a DAPO batch may have changed, at the latest after `within_s`."""
    await _until(store, store.keys.draw_bell, within_s)


async def ring_draw(store: Store) -> None:
    """Rings for the drawing duty. However often it is sent, one mark lies there."""
    bell = store.keys.draw_bell
    await store.write_many([("LPUSH", bell, 1), ("LTRIM", bell, 0, 0)])


async def _until(store: Store, bell: str, within_s: float) -> None:
    with suppress(RedisUnavailable):
        await store.write("BLPOP", bell, within_s, repeat=Repeat.ONCE, blocks=True)
