"""Large trajectories through a whole service: from RUN over EVAL to a trainer, over HTTP and over Redis alone."""

import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prorl_mq.client import AsyncClient, ServiceError
from prorl_mq.client.transport import ClosedGroup
from prorl_mq.duties.payloads import PayloadCollection
from prorl_mq.schema.codec import decode_trajectory
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, Outcome, Task
from prorl_mq.service import submit
from prorl_mq.service.fsck.look import look
from prorl_mq.service.fsck.payloads import NUMBER
from prorl_mq.store.payloads import reading
from prorl_mq.store.payloads.limits import REDIS_BYTES
from prorl_mq.store.payloads.name import named_file
from prorl_mq.store.payloads.place import DIRECTORY, payloads_of
from tests.chaos.handler import seed_of, text_of
from tests.payloads.conftest import under
from tests.support.service import acknowledge_all, assert_nothing_left, gather, start_all, store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.process]
MIB = 1 << 20
LARGE = 24 * MIB
ABOVE = REDIS_BYTES + MIB
RUN = "run"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="pq") as name:
        world = World(Path(name))
        (world.directory / DIRECTORY).mkdir(mode=0o700)
        try:
            yield world
        finally:
            world.stop()


def batch(name: str, *sizes: int) -> BatchRequest:
    """A group for each size."""
    groups = [
        GroupRequest(
            group_id=f"{name}-{place}", n=1,
            task=Task(task_id="t", data_source="chaos", payload={"said_bytes": size, "run_ms": 99, "secret": "CANARY"}),
        )
        for place, size in enumerate(sizes)
    ]  # fmt: skip
    return BatchRequest(run_id=RUN, batch_id=name, groups=groups)


async def records(client: AsyncClient, name: str) -> dict[str, ClosedGroup]:
    return {closed.record.group_id: closed async for closed in client.groups(RUN, batch_id=name)}


async def test_a_trajectory_of_24_mb_reaches_its_trainer_and_no_key_of_redis(world: World, tmp_path: Path) -> None:
    files = payloads_of(world.settings)
    assert files is not None
    async with store_of(world) as store:
        await start_all(world, store, workers=1, apis=1)
        uds = str(world.directory / "api-0.sock")
        async with AsyncClient("http://api", uds=uds, patience_s=60) as client:
            await client.submit(batch("http", LARGE, 1000))
            closed = await records(client, "http")
            [sample] = closed["http-0"].record.samples
            assert (sample.outcome, sample.error) == (Outcome.COMPLETED, None)
            assert sample.trajectory_bytes > LARGE
            assert named_file(sample.trajectory or "")
            assert (await client.trajectory(sample.job_id)).turns[0].text == text_of(LARGE, seed_of(sample.job_id))
            assert len(under(world.directory / DIRECTORY)) == 1
            [small] = closed["http-1"].record.samples
            assert (small.trajectory or "").startswith("{prorl}:blob:")
            assert await peak(store) < LARGE / 2
            assert (await look(store, files=files)).violations == []

            await directly(world, tmp_path)
            [held] = [row for row in await client.runs() if row.run_id == RUN]
            assert held.unacked_groups == 4
            await client.ack(RUN, [each.cursor for each in closed.values()])
        assert (await look(store, files=files)).violations == []


async def test_whatever_is_killed_what_is_named_is_there_and_the_rest_goes(world: World) -> None:
    """RUN dies by SIGKILL each time a file has just come, mostly before the commit that would name it."""
    files = payloads_of(world.settings)
    assert files is not None
    limits = Limits(max_deaths=100, max_attempts=100, backoff_ms=50)
    request = msgspec.structs.replace(batch("kills", *[100_000] * 32), run_id="chaos", limits=limits)
    async with store_of(world) as store:
        store.payloads = files
        await start_all(world, store, workers=1, apis=1)
        await submit.accept(store, "default", request)
        for _ in range(3):
            before = under(files.directory)

            async def more(known: set[str] = before) -> bool:
                return not under(files.directory) <= known

            await until(more, within_s=60)
            world.kill("run-0")
            world.restart("run-0")
        world.kill_redis()
        world.start_redis()
        found = await gather(store, None, len(request.groups), within_s=100)
        assert len(found) == len(request.groups)
        for record in found:
            [sample] = [each for each in record.samples if not each.replaced]
            data = await reading.get(store, "default:chaos", sample.trajectory or "")
            assert data is not None
            assert decode_trajectory(data).turns[0].text == text_of(100_000, seed_of(sample.job_id))
        assert all(each.number != NUMBER for each in (await look(store, files=files)).violations)
        await acknowledge_all(store)
        await assert_nothing_left(store)
        for path in files.directory.rglob("*"):
            os.utime(path, (0, 0))

        async def gone() -> bool:
            async for _ in PayloadCollection(store, files, settled_s=0.0)._collect():
                pass
            return under(files.directory) == set()

        await until(gone)  # jobs that have ended name them for some seconds more


async def directly(world: World, tmp_path: Path) -> None:
    """A trainer with Redis alone gets what Redis takes from there, and is told where the rest is."""
    async with AsyncClient(world.settings.url, patience_s=60) as client:
        await client.submit(batch("direct", MIB, ABOVE))
        closed = await records(client, "direct")
        [sample], [large] = closed["direct-0"].record.samples, closed["direct-1"].record.samples
        assert (sample.trajectory or "").startswith("{prorl}:blob:")
        assert MIB < sample.trajectory_bytes < REDIS_BYTES
        assert (await client.trajectory(sample.job_id)).turns[0].text == text_of(MIB, seed_of(sample.job_id))
        assert named_file(large.trajectory or "")
        assert len((await client.trajectory(large.job_id)).turns[0].text) > ABOVE  # it sees the directory
    elsewhere = tmp_path / "redis.sock"
    elsewhere.symlink_to(world.directory / "redis.sock")
    async with AsyncClient(f"unix://{elsewhere}", patience_s=60) as client:
        assert (await client.trajectory(sample.job_id)).turns[0].text == text_of(MIB, seed_of(sample.job_id))
        with pytest.raises(ServiceError, match=r"is not on this host.*Over HTTP: GET /v1/jobs/ID/trajectory"):
            await client.trajectory(large.job_id)


async def peak(store: Any) -> int:
    """The most memory that the server has ever used, query buffers and all."""
    text = await store.read("INFO", "memory")
    [found] = [line for line in text.decode().splitlines() if line.startswith("used_memory_peak:")]
    return int(found.partition(":")[2])
