"""Results that Redis publishes again after a crash that lost its last second: passed over, and deleted too."""

import asyncio

import pytest

from prorl_mq.client import AsyncClient
from prorl_mq.schema.ids import run_ref
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from tests.api.service import batch

pytestmark = pytest.mark.anyio
RESULTS = run_ref("default", "run")


async def published_again(settings: RedisSettings, cursor: str) -> None:
    """The result at a cursor is gone with the lost second, and there again at a later one."""
    stream, redis = Keys(settings.namespace).results(RESULTS), connect(settings)
    [(_, fields)] = await redis.execute_command("XRANGE", stream, cursor, cursor)
    await redis.execute_command("XDEL", stream, cursor)
    later = int(cursor.partition("-")[0]) + 1
    await redis.execute_command("XADD", stream, f"{later}-0", *fields)
    await redis.aclose()


async def results(settings: RedisSettings) -> int:
    redis = connect(settings)
    rows = await redis.execute_command("XRANGE", Keys(settings.namespace).results(RESULTS), "-", "+")
    await redis.aclose()
    return sum(fields[0] == b"r" for _, fields in rows)


@pytest.mark.parametrize("acknowledged", ["before", "after"])
async def test_a_result_that_is_published_again_is_read_once_and_leaves_nothing(
    client: AsyncClient, settings: RedisSettings, acknowledged: str
) -> None:
    """`acknowledged`: before or after the second copy was met."""
    groups = client.results("run", wait_s=1)
    async with asyncio.timeout(60):
        await client.submit(batch(groups=1))
        await client.cancel("run", "run")
        first = await anext(groups)
        await published_again(settings, first.cursor)
        if acknowledged == "before":
            await client.ack("run", [first.cursor])
        await client.submit(batch(name="later", groups=1))
        await client.cancel("batch", "run:later")
        second = await anext(groups)
        assert second.record.group_id == "later-0"
        await client.ack("run", [first.cursor, second.cursor])
        while await results(settings):  # on the direct path an API process deletes what is acknowledged
            await asyncio.sleep(0.05)
