"""A service over HTTP for the tests of a module, and a worker in the hands of each."""

from collections.abc import AsyncIterator

import pytest

from prorl_mq.client.rollouts import close_shared
from prorl_mq.store import work
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from tests.api.process import started
from tests.api.service import Worker, announce_source
from tests.trainers.serving import MATH
from workers.handlers.math.family import Math


@pytest.fixture(scope="module")
async def url(redis_server: RedisSettings) -> AsyncIterator[str]:
    """It has two task families: the tests' own, and mathematics by its real schema."""
    redis = connect(redis_server)
    await redis.execute_command("FLUSHALL")
    await announce_source(redis_server)
    await work.enroll(Store(redis, Keys(redis_server.namespace), name="test"), {MATH: Math.schema}, None)
    await redis.aclose()
    async with started(redis_server) as (_, address):
        yield address
        await close_shared()


@pytest.fixture
async def worker(redis_server: RedisSettings, url: str) -> AsyncIterator[Worker]:
    del url
    async with Worker(redis_server) as each:
        yield each
