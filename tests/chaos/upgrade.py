"""`prorl-mq upgrade` between two releases, with a full backlog and results that nobody has read."""

import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from prorl_mq.cli.local import upgrade
from prorl_mq.service import submit
from prorl_mq.store import results
from prorl_mq.store.store import Store
from tests.chaos.test_faults import one_batch
from tests.support.service import RUN, acknowledge_all, assert_nothing_left, gather, start_all, store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
GROUPS = 80


def speaking(world: World, protocol: str) -> None:
    """What is started from now on is a release of that protocol."""
    place = world.directory / f"release-{protocol}"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(f"from prorl_mq.store.core import Core\nCore.protocol = '{protocol}'\n")
    path = [part for part in world.env["PYTHONPATH"].split(os.pathsep) if "/release-" not in part]
    world.env["PYTHONPATH"] = os.pathsep.join([str(place), *path])


@contextlib.asynccontextmanager
async def backlogged(world: World, protocol: str) -> AsyncIterator[Store]:
    """A service of a release: results that nobody has read, jobs in flight, and more groups that wait."""
    speaking(world, protocol)
    async with store_of(world) as store:
        store.protocol = protocol
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", one_batch("done", 3, 1))
        await until(lambda: _closed(store, 3))
        await submit.accept(store, "default", one_batch("waits", GROUPS, 2, run_ms=300, llm=True))
        await until(lambda: _begun(store))
        yield store


async def _closed(store: Store, count: int) -> bool:
    return len(await results.collect(store, RUN, limit=1_000)) >= count


async def _begun(store: Store) -> bool:
    return bool(await store.read("EXISTS", store.keys.in_flight))


async def waiting(store: Store) -> int:
    return int(await store.read("ZCARD", store.keys.backlog(RUN)))


async def test_a_service_goes_to_an_older_release_and_back_and_loses_nothing(world: World) -> None:
    said: list[str] = []
    async with backlogged(world, "3") as store:
        for protocol, other, command in (("3", "2", "3"), ("2", "3", "3")):
            async with store_of(world, "upgrade") as ours:
                ours.protocol = command  # the newer of both has the command
                await upgrade.upgrade(ours, other, say=said.append, least="2")
            assert await waiting(store) > 0, "the backlog waited"
            assert await _closed(store, 3), "and so did results"
            assert not await _begun(store), "processes of the release before admit nothing more"
            speaking(world, other)
            for name in [*world.workers, *world.apis]:
                world.kill(name)
                world.restart(name)
            store.protocol = other
            await until(lambda: _begun(store))
            assert f"switched from protocol {protocol} to {other}" in said[-1]
        assert len(await gather(store, None, GROUPS + 3, within_s=60)) == GROUPS + 3
        await acknowledge_all(store)
        await assert_nothing_left(store)
