"""A whole service follows its primary: no process ends, no attempt is lost, and the trainer sees each group once."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.schema.messages import Stage
from prorl_mq.store import pools
from prorl_mq.store.server.connection import RedisSettings
from tests.chaos.test_faults import one_batch
from tests.ha.stand import Stand, stand, until
from tests.support.world import ROOT, World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(120)]
GROUPS = 12


def world_of(here: Stand, directory: Path) -> World:
    """Processes that find Redis by its Sentinels."""
    world = World(directory, lease_ms=5_000, namespace=here.settings.namespace)
    world.settings = here.settings
    if here.settings.rendezvous is None:
        world.env |= {"PRORL_REDIS": here.settings.url, "PRORL_REDIS_PASSWORD": here.settings.password or ""}
    else:
        world.env |= {"PRORL_REDIS": "", "PRORL_RENDEZVOUS": str(here.settings.rendezvous)}
    world.env |= {"PRORL_DURABILITY": "replicated"}
    return world


async def test_no_process_ends_and_no_attempt_is_lost_when_the_primary_is_killed() -> None:
    async with stand() as here:
        await served(here, lambda: here.signal_primary(signal.SIGKILL))


async def served(here: Stand, fault: Callable[[], object]) -> None:
    """A service gives a trainer each group once, whatever happens to the primary while it works."""
    await here.whole()
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        world = world_of(here, Path(name))
        try:
            await started(world, here)
            groups, events = await rolled_out(world, here, fault)
            alive = {name for name, process in (world.workers | world.apis).items() if process.poll() is None}
        finally:
            world.stop()
    assert sorted(groups) == sorted(set(groups)), "a cursor shows each group once"
    assert len(groups) == GROUPS
    assert not {"reap", "fail", "requeue"} & events
    assert alive == {"init-0", "run-0", "eval-0", "api-0"}


async def started(world: World, here: Stand) -> None:
    await pools.add(here.store, "default:policy", world.start_backend())
    world.start_api()
    for stage in Stage:
        world.start_worker(stage)

    async def known() -> bool:
        return int(await here.store.read("ZCARD", here.store.keys.workers)) == len(Stage)

    await until(known)


async def rolled_out(world: World, here: Stand, fault: Callable[[], object]) -> tuple[list[str], set[str]]:
    """A batch whose jobs are under way when the primary fails: the groups that a trainer sees, and what happened."""
    seen, events = list[str](), set[str]()
    async with AsyncClient("http://api", uds=str(world.directory / "api-0.sock")) as client:
        await client.submit(one_batch("b", GROUPS, 1, run_ms=1_500))

        async def running() -> bool:
            return int(await here.store.read("ZCARD", here.store.keys.leases)) >= 4

        await until(running)
        fault()
        async with asyncio.timeout(60):
            async for group in client.results("chaos"):
                seen.append(group.record.group_id)
                for sample in group.record.samples:
                    events |= {each.event for each in (await client.timeline(sample.job_id)).changes}
                if len(seen) == GROUPS:
                    return seen, events
    raise AssertionError(f"the results ended after {len(seen)} groups")


async def test_a_server_without_replicas_is_refused_at_the_start(settings: RedisSettings) -> None:
    argv = [sys.executable, "-m", "api", "--redis", settings.url, "--durability", "replicated", "--port", "0"]
    process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(30):
        _, said = await process.communicate()
    assert process.returncode != 0
    assert b"--durability replicated is refused: no replica follows the primary" in said
    assert b"set min-replicas-to-write 1" in said
