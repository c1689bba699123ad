"""Hypothesis profiles, and a queue on an empty server."""

import os
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.support.queue import Queue

_QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
hypothesis_settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=100,
    stateful_step_count=40,
    print_blob=True,
    suppress_health_check=_QUIET,
)
hypothesis_settings.register_profile(
    "soak", hypothesis_settings.get_profile("ci"), derandomize=False, max_examples=1_000
)
hypothesis_settings.load_profile("soak" if os.environ.get("PRORL_SOAK") == "1" else "ci")


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys) -> AsyncIterator[Queue]:
    client = connect(settings)
    made = Queue(client, keys)
    await made.prepare("n1")
    yield made
    await client.aclose()
