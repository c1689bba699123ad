"""Who works beside a worker: always the truth, at the price of those who are near."""

import pytest

from prorl_mq.schema.messages import Stage
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, ask, connect
from prorl_mq.store.store import Store
from prorl_mq.store.workers import Neighbours

pytestmark = pytest.mark.anyio


async def beat(store: Store, name: str, stage: Stage, node: str, slots: int, *, alive_ms: int = 60_000) -> None:
    keys = store.keys
    await ask(store.redis, "ZADD", keys.workers, await store.now_ms() + alive_ms, name)
    await ask(store.redis, "HSET", keys.worker(name), "stage", stage.value, "node", node, "slots", slots)


async def test_slots_of_a_node_follow_its_workers(settings: RedisSettings, keys: Keys) -> None:
    """They come, drain, go, and come back under another name."""
    redis = connect(settings)
    store = Store(redis, keys, name="t")
    try:
        near = Neighbours(store, Stage.RUN, "n1")
        assert await near.slots() == 0
        await beat(store, "a", Stage.RUN, "n1", 8)
        await beat(store, "b", Stage.RUN, "n2", 8)
        await beat(store, "c", Stage.INIT, "n1", 8)
        assert await near.slots() == 8
        await beat(store, "d", Stage.RUN, "n1", 4)
        assert await near.slots() == 12
        await beat(store, "a", Stage.RUN, "n1", 0)
        assert await near.slots() == 4
        await beat(store, "d", Stage.RUN, "n1", 4, alive_ms=-1)
        assert await near.slots() == 0
        await beat(store, "d", Stage.RUN, "n1", 2)
        assert await near.slots() == 2
    finally:
        await redis.aclose()


async def test_a_thousand_workers_elsewhere_cost_one_command(settings: RedisSettings, keys: Keys) -> None:
    redis = connect(settings)
    store = Store(redis, keys, name="t")
    try:
        near = Neighbours(store, Stage.RUN, "n1")
        for number in range(1000):
            await beat(store, f"w{number}", Stage.RUN, f"far{number}", 8)
        await beat(store, "a", Stage.RUN, "n1", 8)
        assert await near.slots() == 8
        await ask(redis, "CONFIG", "RESETSTAT")
        assert await near.slots() == 8
        text = (await ask(redis, "INFO", "commandstats")).decode()
        calls = {line.split(":")[0]: int(line.split("calls=")[1].split(",")[0]) for line in text.splitlines()[1:]}
        assert calls["cmdstat_hmget"] == 1 + 1  # of the worker on the node, and of the service's clock
        assert calls["cmdstat_zrangebyscore"] == 1
    finally:
        await redis.aclose()
