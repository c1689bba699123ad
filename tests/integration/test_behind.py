"""Admission finds what may run behind any number of groups that may not, at a bounded cost a turn."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from prorl_mq.clock import monotonic
from prorl_mq.duties import admit, behind
from prorl_mq.duties.admit import Admission
from prorl_mq.schema.ids import RunRef, batch_ref, group_ref
from prorl_mq.schema.items import NewBatch, NewGroup
from prorl_mq.schema.messages import Purpose, Stage
from prorl_mq.store import families, runs
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings, connect
from prorl_mq.store.store import Store
from tests.integration.test_costs import commands
from tests.support.queue import RUN, Queue, spec

pytestmark = pytest.mark.anyio
OTHER = RunRef("acme:other")
HAS, LACKS = "sums", "missing"  # what the worker has and lacks
FRONT, PART = 4, 8


@pytest.fixture
async def queue(settings: RedisSettings, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Queue]:
    """Small fronts and parts, and a worker that has one family of two."""
    monkeypatch.setattr(admit, "PAST", FRONT)
    monkeypatch.setattr(behind, "AT_ONCE", PART)
    monkeypatch.setattr(admit, "HELD_BLOCK_S", 0.001)
    monkeypatch.setattr(admit, "IDLE_BLOCK_S", 0.001)
    redis, waiting = connect(settings), connect(settings)
    made = Queue(redis, keys)
    made.store = Store(redis, keys, name="w1", waiting=waiting)
    await made.prepare()
    digest = families.digest_of([HAS])
    await made.command("HSET", keys.families, digest, msgspec.msgpack.encode([HAS]))
    about = {"stage": "init", "node": "n1", "slots": 64, "busy": 0, "pid": 1, "started_ms": 1, "families": digest}
    await made.command("HSET", keys.worker("w1"), *(each for pair in about.items() for each in pair))
    await made.command("ZADD", keys.workers, 1 << 50, "w1")
    yield made
    await waiting.aclose()
    await redis.aclose()


async def submit(queue: Queue, batch: str, family: str, groups: int, run: RunRef = RUN, **about: Any) -> None:
    told = spec(batch, **about)
    made = [
        NewGroup(group_ref(run, f"{batch}-{place}"), f"{place}", 1, told.limits.total_ms, b"", b"", family)
        for place in range(groups)
    ]
    new = NewBatch(run, batch_ref(run, batch), "digest", groups, groups, told.purpose, told.priority)
    assert set(await queue.store.submit(new, made)) == {"stored"}


async def admitted(queue: Queue, admission: Admission, groups: int) -> set[str]:
    """Batches of the groups on the first stage, once there are so many."""
    async with asyncio.timeout(40):
        while await queue.command("XLEN", queue.keys.stage(Stage.INIT)) < groups:
            await admission.turn()
    entries = await queue.read(Stage.INIT, count=groups + 1)
    return {entry.ref.split(":")[2].rpartition("-")[0] for entry in entries}


async def test_groups_of_a_family_in_quarantine_wait_until_it_is_released(queue: Queue) -> None:
    """Those of others pass them."""
    await families.quarantine(queue.store, {LACKS: "example 1: differs", HAS: "example 2: differs"})
    await families.release(queue.store, [LACKS])
    await submit(queue, "has", HAS, FRONT + 2 * PART)
    await submit(queue, "plain", "", 5)
    admission = Admission(queue.store)
    assert await admitted(queue, admission, 5) == {"plain"}
    [status] = await runs.look(queue.store, [RUN])
    assert status.backlog == FRONT + 2 * PART
    assert status.why == (
        f"waits: {HAS} is in quarantine (example 2: differs): repair it, then `prorl-mq task release {HAS}`"
    )
    assert await families.release(queue.store, [HAS, LACKS]) == [HAS]
    assert await admitted(queue, admission, 10) == {"has"}


@pytest.mark.parametrize("ahead", [FRONT, FRONT + 1, FRONT + PART, FRONT + 3 * PART + 1])
async def test_groups_behind_those_of_a_family_that_nobody_has_are_admitted(queue: Queue, ahead: int) -> None:
    await submit(queue, "lacks", LACKS, ahead)
    await submit(queue, "has", HAS, 5)
    assert await admitted(queue, Admission(queue.store), 5) == {"has"}
    assert await queue.command("ZCARD", queue.keys.backlog(RUN)) == ahead


async def test_groups_between_and_behind_such_groups_are_admitted_for_both_purposes(queue: Queue) -> None:
    admission = Admission(queue.store)
    for purpose in Purpose:
        for part in range(3):
            await submit(queue, f"lacks-{purpose}-{part}", LACKS, 3 * PART, purpose=purpose)
            await submit(queue, f"has-{purpose}-{part}", HAS, PART + 1, purpose=purpose)
    names = {f"has-{purpose}-{part}" for purpose in Purpose for part in range(3)}
    assert await admitted(queue, admission, 6 * (PART + 1)) == names


async def test_what_comes_behind_them_later_is_admitted_and_the_families_too_once_somebody_has_them(
    queue: Queue,
) -> None:
    admission = Admission(queue.store)
    await submit(queue, "lacks", LACKS, FRONT + PART + 1)
    for _ in range(5):
        await admission.turn()
    await submit(queue, "late", HAS, 2)
    assert await admitted(queue, admission, 2) == {"late"}
    await queue.command("HDEL", queue.keys.worker("w1"), "families")  # as a worker has it that has all
    admission._look_at = 0.0
    assert await admitted(queue, admission, FRONT + PART + 3) == {"lacks"}
    assert await queue.command("ZCARD", queue.keys.backlog(RUN)) == 0


async def test_groups_behind_those_of_a_family_whose_attempts_fail_are_admitted(queue: Queue) -> None:
    failing = msgspec.msgpack.encode([HAS, "failing"])
    await queue.command("HSET", queue.keys.families, families.digest_of([HAS]), failing)
    admission = Admission(queue.store)
    await admission._look()
    admission._tries, admission._look_at = {("acme", "failing"): monotonic() + 1_000}, monotonic() + 1_000
    await submit(queue, "failing", "failing", FRONT + 2 * PART)
    await submit(queue, "has", HAS, 5)
    assert await admitted(queue, admission, 5) == {"has"}
    assert admission._full == set()


async def test_every_run_has_its_turn_and_a_turn_costs_the_same_however_many_groups_wait(queue: Queue) -> None:
    every = [RunRef(f"acme:r{number}") for number in range(3 * behind.LINES)]
    admission = Admission(queue.store)
    for run in every:
        await submit(queue, "lacks", LACKS, FRONT + PART, run)
    await submit(queue, "has", HAS, 1, every[-1])
    assert await admitted(queue, admission, 1) == {"has"}
    admission._look_at = monotonic() + 1_000
    await admission.turn()
    few = await commands(queue, admission.turn)
    for run in every:
        await submit(queue, "more", LACKS, 10 * PART, run)
    await admission.turn()
    assert await commands(queue, admission.turn) <= few + PART


async def test_fronts_that_may_go_cost_no_look_behind_them(queue: Queue) -> None:
    """The control of the bound: nothing more is read where nothing is in the way."""
    admission = Admission(queue.store)
    await submit(queue, "has", HAS, 10 * PART)
    await queue.command("HSET", queue.keys.worker("w1"), "slots", 1)
    await admission.turn()
    assert admission._behind.groups == {}
