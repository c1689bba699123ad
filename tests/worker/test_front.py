"""Rollouts that have begun are taken before those that have not, whatever came first."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.items import Advance, Held, Logged
from prorl_mq.schema.messages import Stage
from prorl_mq.store.server.connection import RedisSettings
from tests.support.queue import Queue
from tests.worker.stage import Acting, finish, options, until, working
from workers.process.read import Read, Reading
from workers.stages.work import Move, Work

pytestmark = pytest.mark.anyio
WAITING = 8
BEGUN = 3


async def waiting(queue: Queue, stage: Stage) -> tuple[list[JobRef], list[JobRef]]:
    """Jobs that wait for a stage, and behind them rollouts that have lost their place, in its order."""
    if stage is Stage.RUN:
        await queue.prepare("n1")
    begun: list[Held] = []
    for number in range(BEGUN):
        held = await queue.hold(Stage.RUN, "n1" if stage is Stage.RUN else None, group=f"b{number}", batch=f"b{number}")
        await queue.store.log([Logged(held, 0, b"t one")])
        begun.append(held)
    fresh: list[JobRef] = []
    for number in range(WAITING):
        fresh += await queue.admitted(group=f"w{number}", batch=f"w{number}")
    if stage is Stage.RUN:
        await queue.store.advance([Advance(held, "n1", b"c") for held in await queue.take(Stage.INIT)])
        for held in begun:
            assert await queue.store.release([held]) == ["released"]
    else:
        for held in begun:
            assert await queue.fail(held) == "delayed"
            await queue.backed_off(held.ref)
            stream = (await queue.snapshot(held.ref)).stream
            assert await queue.store.promote([(held.ref, stream)]) == ["promoted"]
    return fresh, [held.ref for held in begun]


async def order(settings: RedisSettings, jobs: Sequence[JobRef], stage: Stage) -> list[str]:
    """That in which a worker with one slot begins them."""
    acting = Acting(finish)
    about = replace(options(settings, slots=1), stage=stage)
    async with working(about, acting):
        await until(lambda: len(acting.begun) == len(jobs))
    return acting.begun


@pytest.mark.parametrize("stage", [Stage.INIT, Stage.RUN])
async def test_what_has_begun_goes_first_in_its_own_order(queue: Queue, settings: RedisSettings, stage: Stage) -> None:
    fresh, begun = await waiting(queue, stage)
    assert await order(settings, [*begun, *fresh], stage) == [*begun, *fresh]


@pytest.mark.parametrize("stage", [Stage.INIT, Stage.RUN])
async def test_read_as_one_of_many_streams_it_waits_behind_others(
    queue: Queue, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    """The control: the lane is there, and is not read first."""

    async def nothing(_reading: Reading, _front: list[str], _free: int) -> list[Read]:
        return []

    monkeypatch.setattr(Reading, "_begun", nothing)
    fresh, _ = await waiting(queue, stage)
    assert (await order(settings, fresh, stage))[:WAITING] == fresh


@pytest.mark.parametrize("stage", [Stage.INIT, Stage.RUN])
async def test_what_has_begun_is_leased_once_it_takes_long(queue: Queue, settings: RedisSettings, stage: Stage) -> None:
    _, begun = await waiting(queue, stage)
    leased: list[str] = []

    async def act(work: Work) -> Move:
        await work.hold()
        leased.append(work.held.ref)
        return await finish(work)

    async with working(replace(options(settings, slots=1), stage=stage), Acting(act)):
        await until(lambda: len(leased) >= BEGUN)
    assert leased[:BEGUN] == begun
