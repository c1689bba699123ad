"""fsck looks at a live service while groups are in play, retried, cancelled and drawn for a DAPO batch."""

import asyncio

import pytest

from prorl_mq.schema.dapo import Dapo, Surplus
from prorl_mq.schema.messages import BatchRequest, GroupRequest, Limits, Task
from prorl_mq.service import cancel, submit
from prorl_mq.service.fsck.look import judge, look
from prorl_mq.store.store import Store
from tests.support.service import RUN, acknowledge_all, assert_nothing_left, start_all, store_of, until
from tests.support.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(180)]


def request(name: str, dapo: Dapo | None = None) -> BatchRequest:
    payload = {"secret": "CANARY", "run_ms": 30, "llm": True, "fail_init": name.endswith("1")}
    task = Task(task_id="t", data_source="chaos", payload=payload)
    groups = [GroupRequest(task=task, n=1 + place % 3) for place in range(6)]
    return BatchRequest(run_id="chaos", batch_id=name, groups=groups, limits=Limits(backoff_ms=20), dapo=dapo)


async def traffic(store: Store, over: asyncio.Event) -> int:
    """Batches of all kinds until the looks are over; how many there were."""
    number = 0
    while not over.is_set():
        dapo = Dapo(target_groups=1, surplus=list(Surplus)[number % 3]) if number % 2 else None
        await submit.accept(store, "default", request(f"b{number}", dapo))
        if number % 3 == 0:
            await cancel.cancel(store, "batch", f"{RUN}:b{number}")
        await until(lambda: _quiet(store), within_s=60)
        await acknowledge_all(store)
        number += 1
    return number


async def _quiet(store: Store) -> bool:
    """Few enough groups wait that more may come."""
    return int(await store.read("SCARD", store.keys.open_groups(RUN))) < 12


async def test_a_busy_service_has_no_violation(world: World) -> None:
    async with store_of(world) as store, store_of(world, "fsck") as reader:
        await start_all(world, store, workers=1, apis=1)
        over = asyncio.Event()
        task = asyncio.create_task(traffic(store, over))
        for _ in range(2):
            report = await judge(reader, apart_s=2 * world.lease_ms / 1000)
            assert report.violations == []
        assert not report.idle
        over.set()
        assert await task > 1
        await cancel.cancel(store, "run", RUN)
        await until(lambda: _over(store))
        await acknowledge_all(store)
        await assert_nothing_left(store)


async def _over(store: Store) -> bool:
    report = await look(store)
    return not (report.groups or report.jobs or report.due) and not await store.read("ZCARD", store.keys.dapo)
