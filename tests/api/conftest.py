"""An application on an empty Redis, for the tests of the HTTP interface."""

from collections.abc import AsyncIterator

import httpx
import pytest

from prorl_mq.store.server.connection import RedisSettings
from tests.api.service import Worker, announce_source, api


@pytest.fixture
async def client(settings: RedisSettings) -> AsyncIterator[httpx.AsyncClient]:
    await announce_source(settings)
    async with api(settings) as each:
        yield each


@pytest.fixture
async def worker(settings: RedisSettings, client: httpx.AsyncClient) -> AsyncIterator[Worker]:
    async with Worker(settings) as each:
        yield each
