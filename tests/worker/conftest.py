"""A queue beside the worker, on the same namespace."""

from collections.abc import AsyncIterator

import pytest

from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import Queue


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys) -> AsyncIterator[Queue]:
    redis = connect(settings)
    made = Queue(redis, keys, name="test")
    await made.prepare()
    yield made
    await redis.aclose()
