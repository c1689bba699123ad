"""A move at whose every request something fails, with trainers, other movers and the way back in between. Run by
`make test-cells`.
"""

import contextlib
import os
import random
from collections.abc import AsyncIterator

import pytest

from api.cells.cell import CellLost
from api.cells.directory import CellRefusal
from api.cells.moving import Mover
from api.problems import Problem
from prorl_mq.errors import RunArriving, RunMoved
from prorl_mq.schema.ids import GroupRef
from prorl_mq.store.server.connection import RedisSettings
from tests.cells.near import FAULTS, Died, NearTown, near, waiting, whole_in
from tests.support.queue import RUN
from tests.verbs.moved import published

pytestmark = [pytest.mark.anyio, pytest.mark.chaos, pytest.mark.timeout(300)]
FAILED = (CellLost, CellRefusal, Problem, Died)
LONG = os.environ.get("PRORL_SOAK") == "1"
ELSEWHERE = (RunMoved, RunArriving)


@pytest.fixture
async def here(settings: RedisSettings) -> AsyncIterator[NearTown]:
    async with near(settings) as made:
        yield made


async def at_rest(here: NearTown, mover: Mover, cell: str) -> None:
    """Repeats a move until it has been done."""
    for _ in range(4):
        with contextlib.suppress(*FAILED):
            await mover.move(here.cells[cell], within_s=0)
            return
    await mover.move(here.cells[cell], within_s=0)


@pytest.mark.parametrize("then", ["again", "back"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_whatever_request_of_a_move_fails_the_next_one_or_the_way_back_ends_it(
    here: NearTown, fault: str, then: str
) -> None:
    """Until it has arrived the run can come back, and it is never open in both cells."""
    a, b = here.cells["a"], here.cells["b"]
    await published(a.queue)
    await here.mover().move(b, within_s=0)
    await here.mover().move(a, within_s=0)
    requests, step = here.asked // 2, 0
    ends = list[str]()
    while step <= requests:
        here.fail(fault, after=step)
        with contextlib.suppress(*FAILED):
            await here.mover().move(b, within_s=0)
        here.fail("", after=0)
        assert list((await here.states()).values()).count("here") <= 1, step
        if then == "back":
            with contextlib.suppress(Problem):
                await here.mover().back(lost=False)
        else:
            await at_rest(here, here.mover(), "b")
        [now] = [name for name, state in (await here.states()).items() if state == "here"]
        ends.append(now)
        await at_rest(here, here.mover(), now)
        await at_rest(here, here.mover(), "a")
        step += 1
    if then == "back":
        assert {*ends} == {"a", "b"}, "it comes back until it has arrived"
    else:
        assert {*ends} == {"b"}
    await whole_in(here, "a", {"waits"})
    assert len(await a.queue.results()) == 1


@pytest.mark.parametrize("seed", range(200 if LONG else 6))
async def test_moves_among_other_verbs_lose_and_double_nothing(here: NearTown, seed: int) -> None:
    """Groups come and are withdrawn while movers of both directions fail. The model: the groups that were accepted."""
    rng, groups = random.Random(seed), set[str]()
    await here.cells["a"].queue.submit("first", batch="first")
    groups.add("first")
    for number in range(40 if LONG else 25):
        cell = here.cells[rng.choice("ab")]
        if rng.random() < 0.7:
            here.fail(rng.choice(FAULTS), after=rng.randrange(9))
        match rng.randrange(6):
            case 0 if (await here.states())[cell.name] != "none":
                with contextlib.suppress(*ELSEWHERE):
                    await cell.queue.submit(f"g{number}", batch=f"b{number}")
                    groups.add(f"g{number}")
            case 1 if groups:
                name = rng.choice(sorted(groups))
                with contextlib.suppress(*ELSEWHERE):
                    [jobs] = await cell.queue.withdraw(GroupRef(f"{RUN}:{name}"))
                    if jobs >= 0:
                        await cell.queue.settle()
                        await cell.queue.ack_all()
                        groups.remove(name)
            case 2:
                with contextlib.suppress(*FAILED):
                    await here.mover().back(lost=False)
            case _:
                with contextlib.suppress(*FAILED):
                    await here.mover().move(cell, within_s=0)
        here.fail("", after=0)
        states = await here.states()
        assert [*states.values()].count("here") <= 1, (seed, number, states)
    for _ in range(3):  # what is on its way comes back or arrives; then the run goes to one cell
        with contextlib.suppress(Problem):
            await here.mover().back(lost=False)
        for name in "ab":
            with contextlib.suppress(*FAILED):
                await here.mover().move(here.cells[name], within_s=0)
    await at_rest(here, here.mover(), "a")
    for cell in here.cells.values():
        assert await waiting(cell.queue) == (groups if cell.name == "a" else set()), seed
