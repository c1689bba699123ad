"""A queue beside the worker, on the same namespace."""

from collections.abc import AsyncIterator

import pytest

from prorl_mq.store.connection import RedisSettings, connect
from prorl_mq.store.keys import Keys
from tests.support.queue import Queue


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys) -> AsyncIterator[Queue]:
    redis = connect(settings)
    made = Queue(redis, keys, name="test")
    await made.prepare()
    yield made
    await redis.aclose()
