"""Redis' disk is full for a while: it takes no writes, workers and API wait, and nothing is lost."""

import asyncio
import os
import stat
from pathlib import Path
from typing import NoReturn

import pytest
from redis.exceptions import ResponseError

from prorl_mq.schema.messages import Stage, Verdict
from prorl_mq.service import submit
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import ask, patiently
from tests.chaos.test_faults import one_batch
from tests.support.service import acknowledge_all, gather, store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
SMALL = """#!/bin/sh
exec unshare --user --map-root-user --mount \\
  sh -c 'mount -t tmpfs -o size=3m none "$0/data" && exec "$@"' {place} {binary} "$@"
"""


@pytest.fixture
def small(world: World) -> World:
    """A server whose data directory is a file system of three megabytes, seen by it alone."""
    data, script = world.directory / "data", world.directory / "server"
    data.mkdir()
    script.write_text(SMALL.format(place=world.directory, binary=world.binary))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    world.binary = str(script)
    world.redis_options = ["--dir", str(data), "--appendfsync", "everysec"]
    return world


async def test_a_full_disk_is_an_outage_and_not_an_error(small: World) -> None:
    small.start_redis()
    assert small.redis is not None
    async with store_of(small) as store:
        await patiently(lambda: fitness.start_up(store.redis), outage_ms=20_000)
        small.start_api()
        for stage in Stage:
            small.start_worker(stage)

        async def known() -> bool:
            return int(await store.read("ZCARD", store.keys.workers)) == 3

        await until(known)
        await submit.accept(store, "default", one_batch("b", 4, 4, run_ms=700))

        async def busy() -> bool:
            return int(await store.read("ZCARD", store.keys.leases)) > 0

        await until(busy)
        filler = Path(f"/proc/{small.redis.pid}/root{small.directory}/data/filler")
        fill(filler)

        async def refuses() -> bool:
            try:
                await ask(store.redis, "SET", "probe", "x")
            except ResponseError as error:
                return str(error).startswith("MISCONF")
            return False

        await until(refuses)
        await until(lambda: _beat_refused(small))  # told once, though it is repeated ten times a second
        await asyncio.sleep(2)  # every RUN has ended meanwhile, too
        await asyncio.to_thread(filler.unlink)
        records = await gather(store, None, 4, within_s=60)
        assert [record.verdict for record in records] == [Verdict.ACCEPTED] * 4
        assert all(process.poll() is None for process in [*small.workers.values(), *small.apis.values()])
        assert await acknowledge_all(store) == 4


async def _beat_refused(world: World) -> bool:
    return "MISCONF" in world.log("run-0")


def fill(path: Path) -> None:
    """Until nothing more fits."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="No space left"):
            _write_on(descriptor)
    finally:
        os.close(descriptor)


def _write_on(descriptor: int) -> NoReturn:
    while True:
        os.write(descriptor, b"x" * 4096)
