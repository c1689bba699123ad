"""Rollouts that have begun are taken before those that have not, whatever came first."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from prorl_mq.schema.ids import JobRef
from prorl_mq.schema.items import Advance, Held, Logged
from prorl_mq.schema.messages import Stage
from prorl_mq.store import work
from prorl_mq.store.layout.keys import Keys
from prorl_mq.store.server.connection import RedisSettings
from tests.support.queue import Queue
from tests.worker.stage import Acting, finish, made, options, until, working
from tests.worker.test_lanes import run_worker
from workers.__main__ import parse
from workers.process.read import SETS, Read, Reading
from workers.stages.work import Move, Work

pytestmark = pytest.mark.anyio
WAITING = 8
BEGUN = 3


async def standing(queue: Queue, stage: Stage) -> tuple[list[JobRef], list[Held]]:
    """Jobs that wait for a stage, and rollouts that have begun and still have their places."""
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
    return fresh, begun


async def waiting(queue: Queue, stage: Stage) -> tuple[list[JobRef], list[JobRef]]:
    """Jobs that wait for a stage, and behind them rollouts that have lost their place, in its order."""
    fresh, begun = await standing(queue, stage)
    for held in begun:
        if stage is Stage.RUN:
            assert await queue.store.release([held]) == ["released"]
            continue
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

    async def act(job: Work) -> Move:
        await job.hold()
        leased.append(job.held.ref)
        return await finish(job)

    async with working(replace(options(settings, slots=1), stage=stage), Acting(act)):
        await until(lambda: len(leased) >= BEGUN)
    assert leased[:BEGUN] == begun


async def taken_by_init(queue: Queue, settings: RedisSettings, keys: Keys) -> tuple[list[str], list[JobRef]]:
    """What INIT takes on a node with one RUN slot and two jobs for it, and the rollouts that have lost their place."""
    await queue.prepare("n1")
    await run_worker(queue, keys, "sums")
    for number in range(2):
        await queue.admitted(group=f"r{number}", batch=f"r{number}")
    await queue.store.advance([Advance(held, "n1", b"c") for held in await queue.take(Stage.INIT)])
    _, begun = await waiting(queue, Stage.INIT)
    async with made(options(settings, sandbox="bubblewrap")) as worker:
        reader = work.Reader(worker.store.redis, worker.store.name)
        reading = Reading(worker.settings, worker.store, reader, worker.lanes, held=worker.slots.entries)
        await reading.prepare()
        return [entry.ref for read in await reading.next(4) for entry in read.entries], begun


async def test_init_makes_a_sandbox_for_what_has_begun_while_enough_wait_for_run(
    queue: Queue, settings: RedisSettings, keys: Keys
) -> None:
    """As many as RUN has slots on the node: here one."""
    taken, begun = await taken_by_init(queue, settings, keys)
    assert taken == begun[:1]


async def test_held_back_with_the_others_it_gets_none(
    queue: Queue, settings: RedisSettings, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: one limit for all."""
    monkeypatch.setattr("workers.process.read.BEGUN_SETS", SETS)
    taken, _ = await taken_by_init(queue, settings, keys)
    assert taken == []


class Gated:
    """A stage whose jobs end when a test says. `told`: what happened."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def act(self, job: Work) -> Move:
        self.told.append(f"begun {job.held.ref}")
        await self._gates[job.held.ref].wait()
        self.told.append(f"ended {job.held.ref}")
        return await finish(job)

    async def end(self, ref: str) -> None:
        self._gates[ref].set()
        await until(lambda: f"ended {ref}" in self.told)


async def test_a_full_worker_has_spare_places_for_what_has_begun_alone(queue: Queue, settings: RedisSettings) -> None:
    """The third one follows when the first one ends, and no other job does."""
    fresh, begun = await standing(queue, Stage.RUN)
    gated = Gated()
    async with working(
        replace(options(settings, name="w2", slots=1, spare_slots=2), stage=Stage.RUN), Acting(gated.act)
    ):
        await until(lambda: len(gated.told) == 1)
        assert await queue.store.release(begun) == ["released"] * BEGUN
        await until(lambda: len(gated.told) == 3)
        await gated.end(begun[0].ref)
        await until(lambda: len(gated.told) == 5)
        first, second, third = (held.ref for held in begun)
    assert gated.told == [f"begun {fresh[0]}", f"begun {first}", f"begun {second}", f"ended {first}", f"begun {third}"]


@pytest.mark.parametrize(("given", "meant"), [("8", (8, 0)), ("8+4", (8, 4))])
def test_spare_places_are_named_behind_the_slots(given: str, meant: tuple[int, int]) -> None:
    settings = parse(["--stage", "run", "--sandbox", "none", "--slots", given])
    assert (settings.slots, settings.spare_slots) == meant


@pytest.mark.parametrize("given", ["0", "8+-1", "+4", "many"])
def test_other_slots_are_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--stage", "run", "--sandbox", "none", "--slots", given])
    assert "--slots" in capsys.readouterr().err


async def test_without_spare_places_it_waits_for_a_slot(
    queue: Queue, settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control. The lane in front is looked into again at once."""
    monkeypatch.setattr("workers.process.read.LOOK_S", 0.0)
    fresh, begun = await standing(queue, Stage.RUN)
    gated = Gated()
    async with working(replace(options(settings, name="w2", slots=1), stage=Stage.RUN), Acting(gated.act)):
        await until(lambda: len(gated.told) == 1)
        assert await queue.store.release(begun) == ["released"] * BEGUN
        await gated.end(fresh[0])
        await until(lambda: len(gated.told) == 3)
    assert gated.told == [f"begun {fresh[0]}", f"ended {fresh[0]}", f"begun {begun[0].ref}"]
