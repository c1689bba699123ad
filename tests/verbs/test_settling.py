"""The settling duty: what hangs or cannot be read in one run never delays another's groups."""

import asyncio
import threading

import pytest

from prorl_mq.duties.settle import Settling
from prorl_mq.rules import filters
from prorl_mq.schema.codec import encode
from prorl_mq.schema.dapo import Accuracy, Dapo, Predicate
from prorl_mq.schema.ids import GroupRef, batch_ref, group_ref, run_ref
from prorl_mq.schema.messages import Stage
from prorl_mq.store.batches import DrawPlan
from prorl_mq.store.results import collect
from tests.support.queue import LINGER_MS, RUN, Queue
from tests.support.sampler import Sampler, prompts

pytestmark = pytest.mark.anyio
OTHER = run_ref("globex", "r")


async def finished_elsewhere(queue: Queue) -> GroupRef:
    """A group of another tenant's run that is due."""
    batch, made = queue.new("g")
    ref = group_ref(OTHER, "g")
    await queue.store.submit(batch._replace(run=OTHER, ref=batch_ref(OTHER, "b")), [made._replace(ref=ref)])
    await queue.store.admit(OTHER, [await queue.wanted(ref)])
    [held] = await queue.take(Stage.INIT)
    await queue.finish(held)
    return ref


async def test_a_group_that_cannot_be_read_delays_its_own_run_alone(queue: Queue) -> None:
    await queue.finish(await queue.hold(Stage.INIT))
    await queue.command("SET", queue.keys.open(group_ref(RUN, "g")), b"\xc1 no spec")
    ref = await finished_elsewhere(queue)
    settling = Settling(queue.store, linger_ms=LINGER_MS)
    async with asyncio.timeout(20):
        while await queue.command("SISMEMBER", queue.keys.open_groups(OTHER), ref):
            await settling.turn()
    await settling.aclose()
    assert len(await collect(queue.store, OTHER)) == 1
    assert await collect(queue.store, RUN) == []


async def test_more_due_groups_of_a_stuck_run_than_one_page_hide_nobody(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prorl_mq.duties.settle.AT_ONCE", 2)
    for name in "abc":
        await queue.admitted(name, batch=name)
        await queue.command("SET", queue.keys.open(group_ref(RUN, name)), b"\xc1 no spec")
    for held in await queue.take(Stage.INIT):
        await queue.finish(held)
    ref = await finished_elsewhere(queue)
    settling = Settling(queue.store, linger_ms=LINGER_MS)
    async with asyncio.timeout(20):
        while await queue.command("SISMEMBER", queue.keys.open_groups(OTHER), ref):
            await settling.turn()
    await settling.aclose()


async def test_a_filter_that_hangs_delays_no_groups_of_another_tenant(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn ends while the filter hangs, so that the next one sees what has come meanwhile."""
    returned = threading.Event()
    monkeypatch.setattr(filters, "PATIENCE_S", 3600)
    monkeypatch.setattr(filters, "_load", lambda _name: lambda _candidate, _options: returned.wait(60))
    sampler = Sampler(queue.redis, queue.keys)
    await sampler.prepare()
    await sampler.submit("b", prompts("g", n=1), Dapo(target_groups=1, filter=Accuracy()))
    await sampler.calm()
    plan = DrawPlan(dapo=Dapo(target_groups=1, filter=Predicate(name="hanging")), pool="acme:policy")
    await queue.command("HSET", queue.keys.batch(batch_ref(RUN, "b")), "plan", encode(plan))
    await sampler.finish_group("g", 1.0)
    settling = Settling(queue.store, linger_ms=LINGER_MS)
    try:
        async with asyncio.timeout(20):
            await settling.turn()
            ref = await finished_elsewhere(queue)
            while await queue.command("SISMEMBER", queue.keys.open_groups(OTHER), ref):
                await settling.turn()
    finally:
        returned.set()
        await settling.aclose()
    assert len(await collect(queue.store, OTHER)) == 1
    assert await collect(queue.store, RUN) == []
