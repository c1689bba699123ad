"""A queue on an empty server, and a watch over all of its keys."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import Queue
from tests.support.watch import Watch


@pytest.fixture
async def redis(settings: RedisSettings) -> AsyncIterator["Redis"]:
    client = connect(settings)
    yield client
    await client.aclose()


@pytest.fixture
async def queue(redis: "Redis", keys: Keys) -> Queue:
    made = Queue(redis, keys)
    await made.prepare("n1")
    return made


@pytest.fixture
def watch(redis: "Redis", keys: Keys) -> Watch:
    return Watch(redis, keys)
