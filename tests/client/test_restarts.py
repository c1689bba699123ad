"""The client over restarts of the service and of Redis: nothing lost, nothing twice."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from prorl_mq.client import AsyncClient, ServiceError
from prorl_mq.process import redis_server
from prorl_mq.store.server.connection import RedisSettings
from tests.api.process import started
from tests.api.service import announce_source, batch

pytestmark = pytest.mark.anyio


async def test_an_iterator_survives_a_killed_ingress_without_a_loss_or_a_repeat(
    settings: RedisSettings, tmp_path: Path
) -> None:
    await announce_source(settings)
    path = str(tmp_path / "api.sock")
    async with AsyncClient("http://api", uds=path, patience_s=60) as client:
        groups = client.results("run", wait_s=20)
        async with started(settings, "--uds", path) as (process, _):
            await client.submit(batch(groups=2))
            await client.cancel("run", "run")
            async with asyncio.timeout(30):
                seen = [(await anext(groups)).record.group_id for _ in range(2)]
            waiting = asyncio.ensure_future(anext(groups))
            await client.batch("run:batch")
            process.kill()
            await process.wait()
        submitting = asyncio.create_task(client.submit(batch(name="later")))  # waits for the next process
        async with started(settings, "--uds", path), asyncio.timeout(60):
            assert not (await submitting).repeated
            await client.cancel("batch", "run:later")
            seen.append((await waiting).record.group_id)
    assert sorted(seen) == ["batch-0", "batch-1", "later-0"]


@pytest.mark.parametrize("door", ["http", "redis"])
async def test_calls_wait_for_redis_to_come_back_with_all_that_was_accepted(tmp_path: Path, door: str) -> None:
    binary, directory = redis_server.find_binary(), tmp_path / "r"
    settings = RedisSettings(url=f"unix://{directory}/redis.sock")
    redis = redis_server.start(binary, directory, ["--appendfsync", "always"])
    try:
        await redis_server.answering(settings, redis, directory)
        await announce_source(settings)
        async with (
            started(settings) as (_, url),
            AsyncClient(url if door == "http" else settings.url, patience_s=60) as client,
        ):
            await client.submit(batch(groups=2))
            os.kill(redis.pid, signal.SIGKILL)
            redis.wait()
            looking = asyncio.create_task(client.batch("run:batch"))
            redis = redis_server.start(binary, directory, ["--appendfsync", "always"])
            async with asyncio.timeout(60):
                assert (await looking).groups == 2
                await client.cancel("run", "run")
                groups = [group.record.group_id async for group in client.groups("run", batch_id="batch")]
        assert sorted(groups) == ["batch-0", "batch-1"]
    finally:
        await asyncio.to_thread(redis_server.stop, redis)


async def test_an_absent_service_is_an_error_after_the_patience(tmp_path: Path) -> None:
    addresses = [("http://api", str(tmp_path / "none")), (f"unix://{tmp_path}/none", None)]
    for url, uds in addresses:
        async with AsyncClient(url, uds=uds, patience_s=0.2) as client:
            with pytest.raises(ServiceError, match="does not answer"):
                await client.batch("run:batch")
