"""A whole service follows its primary: no process ends, no attempt is lost, and the trainer sees each group once."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from prorl_mq.client.asynchronous import AsyncClient
from prorl_mq.schema.messages import Stage
from prorl_mq.store import pools
from prorl_mq.store.server.connection import RedisSettings
from tests.chaos.test_faults import one_batch
from tests.ha.stand import Stand, Writers, stand, until
from tests.support.world import ROOT, World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(120)]
GROUPS = 12
Fault = Callable[[], Awaitable[object]]


def world_of(here: Writers, directory: Path, durability: str) -> World:
    """Processes that look for the primary."""
    world = World(directory, lease_ms=5_000, namespace=here.settings.namespace)
    world.settings = here.settings
    if here.settings.rendezvous is None:
        world.env |= {"PRORL_REDIS": here.settings.url, "PRORL_REDIS_PASSWORD": here.settings.password or ""}
    else:
        world.env |= {"PRORL_REDIS": "", "PRORL_RENDEZVOUS": str(here.settings.rendezvous)}
    world.env |= {"PRORL_DURABILITY": durability}
    return world


async def test_no_process_ends_and_no_attempt_is_lost_when_the_primary_is_killed() -> None:
    async with stand() as here:
        await served(here, lambda: here.signal_primary(signal.SIGKILL))


async def served(here: Stand, fault: Callable[[], object]) -> None:
    """The service on a whole chain, in replicated mode."""

    async def failed() -> None:
        fault()

    await here.whole()
    await undisturbed(here, failed, "replicated")


async def undisturbed(here: Writers, fault: Fault, durability: str) -> None:
    """A service gives a trainer each group once, whatever happens to the primary while it works."""
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        world = world_of(here, Path(name), durability)
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


async def started(world: World, here: Writers) -> None:
    await pools.add(here.store, "default:policy", world.start_backend())
    world.start_api()
    for stage in Stage:
        world.start_worker(stage)

    async def known() -> bool:
        return int(await here.store.read("ZCARD", here.store.keys.workers)) == len(Stage)

    await until(known)


async def rolled_out(world: World, here: Writers, fault: Fault) -> tuple[list[str], set[str]]:
    """A batch whose jobs are under way when the primary fails: the groups that a trainer sees, and what happened."""
    seen, events = list[str](), set[str]()
    async with AsyncClient("http://api", uds=str(world.directory / "api-0.sock")) as client:
        await client.submit(one_batch("b", GROUPS, 1, run_ms=1_500))

        async def running() -> bool:
            return int(await here.store.read("ZCARD", here.store.keys.leases)) >= 4

        await until(running)
        await fault()
        async with asyncio.timeout(60):
            async for group in client.results("chaos"):
                seen.append(group.record.group_id)
                for sample in group.record.samples:
                    events |= {each.event for each in (await client.timeline(sample.job_id)).changes}
                if len(seen) == GROUPS:
                    return seen, events
    raise AssertionError(f"the results ended after {len(seen)} groups")


async def refused(url: str, **environ: str) -> bytes:
    """The last words of an API process that is to run in replicated mode."""
    argv = [sys.executable, "-m", "api", "--redis", url, "--durability", "replicated", "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=ROOT, env=os.environ | environ, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, said = await process.communicate()
    assert process.returncode != 0
    return said


async def test_a_server_without_replicas_is_refused_at_the_start(settings: RedisSettings) -> None:
    said = await refused(settings.url)
    assert b"--durability replicated is refused: no replica follows the primary" in said
    assert b"set min-replicas-to-write 1" in said
