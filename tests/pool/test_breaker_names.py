"""The breakers of images and families in Redis: each has its own fields, and there is a bound to their number."""

import pytest

from prorl_mq.rules.breaker import SHARED
from prorl_mq.schema.messages import Stage
from prorl_mq.store import breakers
from prorl_mq.store.breakers import BreakerKey
from tests.pool.conftest import queue
from tests.support.queue import Queue
from workers.postponed import SharedBreakers

__all__ = ["queue"]
pytestmark = pytest.mark.anyio

LONG = "x" * 5_000


async def test_names_that_look_like_fields_of_another_one_or_are_very_long_are_kept_apart(queue: Queue) -> None:
    names = ["x", "x|breaker", "x|why", "x%7Cwhy", "x%", "a\udcff", "a:b:c", LONG, f"{LONG}y"]
    keys = [
        *map(breakers.image, names),
        breakers.family("t", Stage.EVAL, "x|since"),
        breakers.family("t", Stage.EVAL, "x"),
    ]
    for number, key in enumerate(keys):
        for _ in range(number + 1):
            await breakers.failed(queue.store, key, "it broke", None)
    found = await breakers.look(queue.store)
    assert [found[key].breaker.failures for key in keys] == list(range(1, len(keys) + 1))
    some = await breakers.look_at(queue.store, keys[:2])
    assert {key: seen._replace(now_ms=0) for key, seen in some.items()} == {
        key: found[key]._replace(now_ms=0) for key in keys[:2]
    }
    assert max(len(key.text) for key in keys) < 400
    for key in keys:
        await breakers.succeeded(queue.store, key)
    assert await breakers.look(queue.store) == {}


async def test_the_oldest_images_that_have_failed_are_forgotten_and_neither_families_nor_open_ones(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakers, "MOST", 20)
    kept = [breakers.image("open"), breakers.family("t", Stage.EVAL, "lib")]
    shared = SharedBreakers(queue.store)
    for _ in range(SHARED.failures):
        await shared.failed(kept[0], OSError("it broke"))
    await shared.failed(kept[1], OSError("it broke"))
    newest = BreakerKey("")
    for number in range(50):
        newest = breakers.image(f"image-{number}")
        await shared.failed(newest, OSError("it broke"))
    found = await breakers.look(queue.store)
    assert 15 <= len(found) <= 20
    assert {*kept, newest} <= found.keys()
