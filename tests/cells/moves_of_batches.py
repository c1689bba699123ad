"""A run of DAPO batches, plain ones and forks moves back and forth, and its moves fail at any request, while its
trainer submits, cancels and acknowledges and its jobs end. Run by `make test-cells`.
"""

import contextlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from api.problems import Problem
from prorl_mq.errors import NotFound
from prorl_mq.schema.codec import decode, encode
from prorl_mq.schema.dapo import Dapo, Reservoir, Surplus
from prorl_mq.schema.ids import GroupRef, JobRef, batch_ref, group_ref, job_parts
from prorl_mq.schema.items import NewBatch, NewFork, NewGroup
from prorl_mq.schema.messages import GroupRecord
from prorl_mq.schema.status import BatchReport
from prorl_mq.schema.trajectory import ForkedFrom
from prorl_mq.schema.turns import SCHEMA, Inherited
from prorl_mq.service.fsck.look import look
from prorl_mq.store.results import acknowledge, collect
from prorl_mq.store.server.connection import RedisSettings
from tests.cells.moves import ELSEWHERE, FAILED, at_rest
from tests.cells.near import FAULTS, NearCell, NearTown, near, nothing, whole_in
from tests.support.queue import RUN, spec
from tests.support.sampler import RUN_ID, Sampler, prompts

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(300)]
LONG = os.environ.get("PRORL_SOAK") == "1"
STEPS = 100 if LONG else 50


@pytest.fixture
async def here(settings: RedisSettings) -> AsyncIterator[NearTown]:
    async with near(settings) as made:
        yield made


class Trainer:
    """A trainer, the workers and the duties of two cells. It keeps what was accepted, and what it was told."""

    def __init__(self, town: NearTown, rng: random.Random) -> None:
        self.town, self.rng = town, rng
        self.sides = {cell.name: Sampler(cell.queue.redis, cell.queue.keys) for cell in town.cells.values()}
        self.groups = set[str]()
        self.batches = set[str]()  # of DAPO
        self.forks = dict[str, Inherited]()
        self.jobs = list[JobRef]()
        self.records: dict[str, GroupRecord] = {}
        self.reports: dict[str, BatchReport] = {}
        self._number = 0

    async def act(self, cell: NearCell | None = None) -> None:
        """One thing at a cell, which may not have the run."""
        side = self.sides[cell.name if cell is not None else self.rng.choice("ab")]
        if not await side.queue.command("EXISTS", side.queue.keys.run(RUN), side.queue.keys.away(RUN)):
            return
        deeds = [self._dapo, self._plain, self._fork, self._cancel, self._read, *5 * [self._work]]
        deed = self.rng.choice(deeds)
        with contextlib.suppress(*ELSEWHERE):
            await deed(side)

    async def first(self) -> None:
        await self._plain(self.sides["a"])

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}{self._number}"

    async def _dapo(self, side: Sampler) -> None:
        batch, rng = self._name("d"), self.rng
        names = [f"{batch}-{i}" for i in range(rng.randint(1, 8))]
        about = Dapo(
            target_groups=rng.randint(1, 2),
            oversample=rng.choice([1.0, 3.0]),
            surplus=rng.choice(list(Surplus)),
            reservoir=rng.choice(list(Reservoir)),
        )
        await side.submit(batch, prompts(*names), about)
        self.batches.add(batch)
        self.groups |= {*names}

    async def _plain(self, side: Sampler) -> None:
        batch = self._name("p")
        names = [f"{batch}-{i}" for i in range(self.rng.randint(1, 3))]
        await side.submit(batch, prompts(*names))
        self.groups |= {*names}

    async def _fork(self, side: Sampler) -> None:
        if not self.jobs:
            return
        parent, name, queue = self.rng.choice(self.jobs), self._name("f"), side.queue
        base = Inherited(SCHEMA, parent, 1, [b"C0", b"R0", b"C1", b"R1" * self.rng.randint(1, 9)], None)
        told = spec(name, n=2, fork=ForkedFrom(job_id=parent, turn=1))
        group = NewGroup(group_ref(RUN, name), name, 2, told.limits.total_ms, encode(told), b"sealed", told.data_source)
        batch = NewBatch(RUN, batch_ref(RUN, name), name, 1, 2, told.purpose, 0)
        begins = NewFork(encode(base), parent, b"", "", queue.keys.job(parent), None)
        assert await queue.store.fork(batch, group, begins) == "forked"
        self.groups.add(name)
        self.forks[name] = base

    async def _cancel(self, side: Sampler) -> None:
        kind, name = self.rng.choice([("group", each) for each in sorted(self.groups)]
                                     + [("batch", each) for each in sorted(self.batches)])  # fmt: skip
        with contextlib.suppress(NotFound):
            await side.cancel(kind, f"{RUN_ID}:{name}")

    async def _work(self, side: Sampler) -> None:
        """One step of the duties or of the workers."""
        side.hire()  # duties that have met a run of elsewhere leave it out for a while
        backlog = await side.queue.command("ZRANGE", side.queue.keys.backlog(RUN), 0, -1)
        match self.rng.randrange(4):
            case 0:
                await side.replenishing.look_around()
            case 1:
                self.rng.shuffle(backlog)
                for ref in map(GroupRef, map(bytes.decode, backlog[: self.rng.randint(1, 3)])):
                    await side.queue.store.admit(RUN, [await side.queue.wanted(ref)])
                await side.claim()
            case 2:
                await self.finish(side, self.rng.randint(1, 4))
            case _:
                await self.leave_quiet(side)

    async def finish(self, side: Sampler, most: int = 1_000) -> None:
        """Some jobs end."""
        running = await side.running()
        self.rng.shuffle(running)
        for ref in running[:most]:
            self.jobs.append(ref)
            if (base := self.forks.get(job_parts(ref).group)) is not None:
                assert await side.queue.store.inherited(job_parts(ref).group_ref) == base
            reward = float(job_parts(ref).sample % 2 if self.rng.random() < 0.8 else 0)  # mostly a group counts
            assert await side.finish(ref, reward) == "finished"
        await side.obey()

    async def make_way(self) -> None:
        """Mostly nothing is in flight when a run is to move."""
        if self.rng.random() < 0.8:
            for side in self.sides.values():
                with contextlib.suppress(*ELSEWHERE):
                    await self.leave_quiet(side)

    async def leave_quiet(self, side: Sampler) -> None:
        """Nothing is in flight: what has begun has ended, and nothing begins."""
        side.hire()
        while await side.queue.command("HEXISTS", side.queue.keys.in_flight, RUN) or await side.settle():
            await side.claim()
            await self.finish(side)

    async def _read(self, side: Sampler) -> None:
        """Reads some results, and acknowledges them."""
        found = (await collect(side.queue.store, RUN, limit=1_000))[: self.rng.randint(1, 4)]
        await acknowledge(side.queue.store, RUN, [each.cursor for each in found])
        for each in found:  # an acknowledgement that was refused leaves them where they were
            self._note(each.record, of_batch=each.of_batch)

    def _note(self, record: bytes, *, of_batch: bool) -> None:
        if of_batch:
            report = decode(record, BatchReport)
            assert report.batch_id not in self.reports
            self.reports[report.batch_id] = report
        else:
            told = decode(record, GroupRecord)
            assert told.group_id not in self.records
            self.records[told.group_id] = told

    async def end(self, side: Sampler) -> None:
        """The run is cancelled, and everything of it is read."""
        side.hire()
        await side.calm()
        while await side.running():
            await self.finish(side)
            await side.calm()
        with contextlib.suppress(NotFound):
            await side.cancel("run", RUN_ID)
        await side.calm()
        for each in await collect(side.queue.store, RUN, limit=10_000):
            self._note(each.record, of_batch=each.of_batch)
        assert {*self.records} == self.groups
        assert {*self.reports} == self.batches
        counted = Counter(each.batch_id for each in self.records.values() if each.verdict == "accepted")
        for name, report in self.reports.items():
            assert report.accepted.count == counted[name], name


@pytest.mark.parametrize("seed", range(200 if LONG else 8))
async def test_moves_of_a_run_with_batches_and_forks_lose_and_double_nothing(here: NearTown, seed: int) -> None:
    """Whatever the run is made of, each group has one record, each DAPO batch one report that fits them."""
    rng = random.Random(seed)
    trainer = Trainer(here, rng)
    for side in trainer.sides.values():
        await side.prepare()
    await trainer.first()

    async def meanwhile() -> None:
        if rng.random() < 0.2:
            await trainer.act()

    for number in range(STEPS):
        cell = here.cells[rng.choice("ab")]
        here.between = meanwhile
        if rng.random() < 0.6:
            here.fail(rng.choice(FAULTS), after=rng.randrange(12))
        match rng.randrange(4):
            case 0:
                with contextlib.suppress(*FAILED):
                    await here.mover().back(lost=False)
            case 1 | 2:
                await trainer.make_way()
                with contextlib.suppress(*FAILED):
                    await here.mover().move(cell, within_s=0)
            case _:
                for _ in range(rng.randint(1, 8)):
                    await trainer.act(cell)
        here.fail("", after=0)
        here.between = nothing
        states = await here.states()
        assert [*states.values()].count("here") <= 1, (seed, number, states)
        for each in here.cells.values():
            assert (await look(each.queue.store)).violations == [], (seed, number, each.name)
    await rest(here, trainer)
    await whole_in(here, "a", set())


async def rest(here: NearTown, trainer: Trainer) -> None:
    """The run comes to the first cell when its jobs have ended, and ends there."""
    for _ in range(3):
        with contextlib.suppress(Problem):
            await here.mover().back(lost=False)
        for name, state in (await here.states()).items():
            if state == "here":
                await trainer.leave_quiet(trainer.sides[name])
        for name in "ab":
            with contextlib.suppress(*FAILED):
                await here.mover().move(here.cells[name], within_s=0)
    await at_rest(here, here.mover(), "a")
    await trainer.end(trainer.sides["a"])
