"""Both doors of the client, to an ingress that runs as a process."""

from collections.abc import AsyncIterator

import pytest

from prorl_mq.client import AsyncClient
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started
from tests.api.service import Worker, announce_source


@pytest.fixture
async def ingress(settings: RedisSettings) -> AsyncIterator[str]:
    """Its address."""
    await announce_source(settings)
    async with started(settings) as (_, url):
        yield url


@pytest.fixture(params=["http", "redis"])
def address(request: pytest.FixtureRequest, ingress: str, settings: RedisSettings) -> str:
    """What a trainer opens its client with."""
    return ingress if request.param == "http" else settings.url


@pytest.fixture
async def client(address: str, settings: RedisSettings) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(address, namespace=settings.namespace, patience_s=20) as each:
        yield each


@pytest.fixture
async def worker(settings: RedisSettings, ingress: str) -> AsyncIterator[Worker]:
    async with Worker(settings) as each:
        yield each
