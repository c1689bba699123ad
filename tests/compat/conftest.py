"""The ProRL routes on an empty Redis, with a worker that does what a test says."""

from collections.abc import AsyncIterator

import httpx
import pytest

from prorl_mq.store.server.connection import RedisSettings
from tests.api.service import Worker, announce_source, compat


@pytest.fixture
async def client(settings: RedisSettings) -> AsyncIterator[httpx.AsyncClient]:
    """Of a server that is not started."""
    await announce_source(settings)
    async with compat(settings) as each:
        yield each


@pytest.fixture
async def worker(settings: RedisSettings, client: httpx.AsyncClient) -> AsyncIterator[Worker]:
    async with Worker(settings) as each:
        yield each
