"""The file that says where a service is: safe to read at any moment, and read again when the service moved."""

import asyncio
from pathlib import Path

import pytest

from prorl_mq.client import AsyncClient
from prorl_mq.errors import ConfigurationError, RedisUnavailable, ServiceError
from prorl_mq.process import redis_server
from prorl_mq.schema import rendezvous
from prorl_mq.schema.messages import Stage, Verdict
from prorl_mq.schema.rendezvous import Place
from prorl_mq.service import submit
from prorl_mq.store.server import fitness
from prorl_mq.store.server.connection import RedisSettings, patiently
from tests.chaos.test_faults import one_batch
from tests.support.service import acknowledge_all, gather, store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


def test_a_rendezvous_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "worker.json"
    place = Place(url="redis://h:1", username="u", secret="s")
    rendezvous.publish(path, place)
    assert path.stat().st_mode & 0o777 == 0o600
    assert rendezvous.read(path) == place
    assert [each.name for each in path.parent.iterdir()] == ["worker.json"]
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="can be read by others"):
        rendezvous.read(path)


async def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "worker.json"
    places = [Place(url=f"redis://h:{port}", secret="x" * port) for port in range(1, 200)]
    rendezvous.publish(path, places[0])

    async def write() -> None:
        for place in places:
            await asyncio.to_thread(rendezvous.publish, path, place)

    writing = asyncio.create_task(write())
    while not writing.done():
        assert await asyncio.to_thread(rendezvous.read, path) in places
    await writing


async def test_a_file_that_does_not_come_is_waited_for_and_then_named(tmp_path: Path) -> None:
    path = tmp_path / "worker.json"
    with pytest.raises(RedisUnavailable, match=r"worker\.json has not appeared"):
        await rendezvous.appeared(path, within_ms=10)
    waiting = asyncio.create_task(rendezvous.appeared(path, within_ms=20_000))
    rendezvous.publish(path, Place(url="redis://h:1"))
    assert (await waiting).url == "redis://h:1"


async def test_a_file_system_that_is_away_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "worker.json"
    rendezvous.publish(path, Place(url="redis://h:1"))
    assert (await rendezvous.refreshed(path)).url == "redis://h:1"
    path.unlink()
    assert (await rendezvous.refreshed(path)).url == "redis://h:1"
    path.write_text("{")
    path.chmod(0o600)
    assert (await rendezvous.refreshed(path)).url == "redis://h:1"


def move_redis(world: World, number: int) -> Place:
    """Redis with the same data at another address."""
    if world.redis is not None:
        redis_server.stop(world.redis)
    socket = world.directory / f"moved-{number}.sock"
    world.redis = redis_server.start(world.binary, world.directory, [*world.redis_options, "--unixsocket", str(socket)])
    return Place(url=f"unix://{socket}")


async def test_workers_find_redis_and_follow_it_when_it_moves(world: World) -> None:
    """They start before it, wait for it, continue at its next address, and lose nothing on the way."""
    file = world.directory / "rendezvous" / "worker.json"
    del world.env["PRORL_REDIS"]
    world.env["PRORL_RENDEZVOUS"] = str(file)
    world.settings = RedisSettings(rendezvous=file, namespace=world.namespace, outage_ms=30_000)
    world.start_api()
    for stage in Stage:
        world.start_worker(stage)
    rendezvous.publish(file, move_redis(world, 1))
    await rendezvous.appeared(file, within_ms=1_000)
    async with store_of(world) as store:
        await patiently(lambda: fitness.start_up(store.redis), outage_ms=20_000)

        async def known() -> bool:
            return int(await store.read("ZCARD", store.keys.workers)) == 3

        await until(known)
        await submit.accept(store, "default", one_batch("b", 4, 4, run_ms=1000))

        async def busy() -> bool:
            return int(await store.read("ZCARD", store.keys.leases)) > 0

        await until(busy)
        rendezvous.publish(file, move_redis(world, 2))
        records = await gather(store, None, 4, within_s=60)
        assert [record.verdict for record in records] == [Verdict.ACCEPTED] * 4
        assert all(process.poll() is None for process in [*world.workers.values(), *world.apis.values()])
        assert await acknowledge_all(store) == 4


async def test_a_trainer_finds_the_api_by_its_file(tmp_path: Path) -> None:
    """The file is read again when nobody answers; until it is there, the client is patient."""
    file = tmp_path / "trainer.json"
    async with AsyncClient(str(file), patience_s=0.2) as client:
        with pytest.raises(ServiceError, match=r"trainer\.json cannot be read"):
            await client.job("r:g:0")
        for port in (1, 2):
            rendezvous.publish(file, Place(url=f"http://127.0.0.1:{port}", secret="token"))
            with pytest.raises(ServiceError, match=rf"http://127\.0\.0\.1:{port} does not answer"):
                await client.job("r:g:0")
