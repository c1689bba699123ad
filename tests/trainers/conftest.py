"""A service over HTTP, and a worker in the hands of the test."""

from collections.abc import AsyncIterator

import pytest

from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started
from tests.api.service import Worker, announce_source


@pytest.fixture
async def url(settings: RedisSettings) -> AsyncIterator[str]:
    await announce_source(settings)
    async with started(settings) as (_, address):
        yield address


@pytest.fixture
async def worker(settings: RedisSettings, url: str) -> AsyncIterator[Worker]:
    del url
    async with Worker(settings) as each:
        yield each
