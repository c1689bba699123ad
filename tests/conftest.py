"""What every test gets: a real server of its own process, empty before each test.

What speaks to a server is imported by the fixtures that need one, so that a test without starts in half the time.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.left_out import left_out

if TYPE_CHECKING:
    from prorl_mq.store.layout.keys import Keys
    from prorl_mq.store.server.connection import RedisSettings

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def binaries() -> dict[str, str]:
    """The servers that the suite runs on: PRORL_TEST_REDIS picks one of redis, valkey."""
    from prorl_mq.process import redis_server as server

    found = {"redis": shutil.which("redis-server"), "valkey": server.embedded_binary()}
    wanted = os.environ.get("PRORL_TEST_REDIS", "valkey")
    binary = found[wanted]
    if binary is None:
        pytest.fail(f"no {wanted} server: run `make setup`")
    return {wanted: binary}


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisSettings]:
    """One server for this test process, on a Unix socket, started from ops/redis.conf."""
    from prorl_mq.process import redis_server as server
    from prorl_mq.store.server.connection import RedisSettings

    [(_, binary)] = binaries().items()
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        directory = Path(name)
        process: subprocess.Popen[bytes] = server.start(binary, directory)
        settings = RedisSettings(url=f"unix://{directory}/redis.sock", namespace="t")
        try:
            asyncio.run(server.answering(settings, process, directory))
            yield settings
        finally:
            server.stop(process)


@pytest.fixture(scope="module")
def empty_redis(redis_server: RedisSettings) -> RedisSettings:
    """For what lives as long as a module: without the runs that another one has left."""
    from redis import Redis

    with Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server


@pytest.fixture
async def settings(redis_server: RedisSettings) -> AsyncIterator[RedisSettings]:
    from prorl_mq.store.server.connection import connect

    client = connect(redis_server)
    await client.execute_command("FLUSHALL")
    await client.aclose()
    return redis_server


@pytest.fixture
def keys(settings: RedisSettings) -> Keys:
    from prorl_mq.store.layout.keys import Keys

    return Keys(settings.namespace)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Names what was skipped, from the reports of all test processes."""
    skipped = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()) if report.longrepr]
    if lines := left_out(skipped):
        terminalreporter.section("left out")
        terminalreporter.write("\n".join(lines) + "\n")
