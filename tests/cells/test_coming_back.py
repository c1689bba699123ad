"""A run that leaves its cell and comes back, whose run it may be, and what may be lost meanwhile."""

from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest

from api.cells import moving as carrying
from api.cells.cell import Cell, CellAnswer
from api.cells.directory import CellRefusal
from api.cells.places import RunPlaces
from api.problems import Problem
from prorl_mq.schema.ids import GroupRef
from prorl_mq.schema.messages import Stage
from prorl_mq.store.moves import moving
from prorl_mq.store.server.connection import RedisSettings
from prorl_mq.store.store import Store
from tests.cells.near import Died, NearTown, bearer, near, waiting, whole_in
from tests.support.queue import RUN
from tests.verbs.moved import published

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


@pytest.fixture
async def here(settings: RedisSettings) -> AsyncIterator[NearTown]:
    async with near(settings) as made:
        yield made


async def test_a_cell_that_has_nothing_to_do_with_it_may_be_lost(settings: RedisSettings) -> None:
    async with near(settings, ("a", "b", "c")) as here:
        await published(here.cells["a"].queue)
        here.cells["c"].down = True
        assert (await here.mover().move(here.cells["b"], within_s=0))["state"] == "moved"
        here.cells["b"].down = True
        with pytest.raises(Problem, match="may have run 'r': try again"):
            await here.mover().move(here.cells["a"], within_s=0)


async def test_a_run_whose_new_cell_is_lost_in_the_middle_comes_back(here: NearTown) -> None:
    """At once while that cell cannot have opened it, and else by the word of the operator that it is lost for good."""
    a, b = here.cells["a"], here.cells["b"]
    await published(a.queue)
    for steps, lost in ((3, False), (4, True)):
        here.fail("dies", after=steps)
        with pytest.raises(Died):
            await here.mover().move(b, within_s=0)
        here.fail("", after=0)
        b.down = True
        if lost:
            with pytest.raises(Problem, match="cell b does not answer, and may have opened run 'r'"):
                await here.mover().back(lost=False)
        assert (await here.mover().back(lost=lost))["state"] == "back"
        assert (await here.mover().progress())["state"] == "there"
        b.down = False
    assert await waiting(a.queue) == {"waits"}
    assert (await here.states())["a"] == "here"


async def test_at_each_try_a_cell_is_told_that_the_other_one_takes_no_files(
    here: NearTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs that are waited for may put some: a run that left with them could be opened nowhere."""
    a, b = here.cells["a"], here.cells["b"]
    told, ask = list[bytes](), a.ask

    async def listening(
        method: str, target: str, headers: Mapping[str, str], body: bytes = b"", **options: float
    ) -> CellAnswer:
        if target.endswith("/departure"):
            told.append(body)
        return await ask(method, target, headers, body, **options)

    async def none(_: Store) -> bool:
        return False

    monkeypatch.setattr(a, "ask", listening)
    monkeypatch.setattr(carrying, "TRY_S", 0.02)
    monkeypatch.setattr(moving, "takes_files", none)
    await a.queue.hold(Stage.RUN)
    with pytest.raises(CellRefusal, match="in flight are: 1 jobs"):
        await here.mover().move(b, within_s=0.1)
    assert len(told) > 1
    assert {msgspec.json.decode(each)["files"] for each in told} == {False}


async def test_a_run_that_has_arrived_does_not_come_back(here: NearTown) -> None:
    a, b = here.cells["a"], here.cells["b"]
    await published(a.queue)
    here.fail("dies", after=6)
    with pytest.raises(Died):
        await here.mover().move(b, within_s=0)
    assert await here.states() == {"a": "left", "b": "here"}
    assert (await here.mover().progress())["state"] == "moving"
    with pytest.raises(Problem, match="has arrived in cell b: repeat that move"):
        await here.mover().back(lost=True)
    assert (await here.mover().move(b, within_s=0))["state"] == "moved"
    await whole_in(here, "b", {"waits"})


async def remembered(here: NearTown) -> list[str]:
    """The cells that keep the departure by which the run came."""
    return [each.name for each in here.cells.values() if await each.queue.command("EXISTS", each.queue.keys.arrivals)]


@pytest.mark.parametrize(("then", "ended"), [("b", True), ("b, without it", True), ("b", False)])
async def test_a_departure_that_a_dead_router_left_behind_goes_with_the_next_move(
    here: NearTown, monkeypatch: pytest.MonkeyPatch, then: str, ended: bool
) -> None:
    """Also where that has nothing else to do, or the run has ended. The control: a mover that looks for none."""
    a, b = here.cells["a"], here.cells["b"]
    await published(a.queue)
    here.fail("dies", after=7)
    with pytest.raises(Died):
        await here.mover().move(b, within_s=0)
    assert await here.states() == {"a": "gone", "b": "here"}
    assert await remembered(here) == ["b"]
    if not ended:
        monkeypatch.setattr(RunPlaces, "remembered", lambda _: [])
    if then.endswith("without it"):
        await b.queue.withdraw(GroupRef(f"{RUN}:waits"))
        await b.queue.settle()
        await b.queue.ack_all()
        assert await b.queue.store.retire_run(RUN, idle_ms=-1) == "retired"
        with pytest.raises(Problem, match="your tenant has no run 'r' in any cell"):
            await here.mover().move(b, within_s=0)
    else:
        assert (await here.mover().move(here.cells[then], within_s=0))["cell"] == then
    assert await remembered(here) == ([] if ended else ["b"])


@pytest.mark.parametrize("looked", [True, False])
async def test_a_departure_whose_cell_has_not_removed_its_run_is_remembered(
    here: NearTown, monkeypatch: pytest.MonkeyPatch, looked: bool
) -> None:
    """Else a mover that comes late would bring the run again when it has ended. The control ends it unseen."""

    def all_of_them(seen: RunPlaces) -> list[tuple[Cell, str]]:
        return [(cell, place.id) for cell, place in seen.by_cell.values() if place.state == "here"]

    if not looked:
        monkeypatch.setattr(RunPlaces, "remembered", all_of_them)
    a, b = here.cells["a"], here.cells["b"]
    await published(a.queue)
    here.fail("dies", after=6)
    with pytest.raises(Died):
        await here.mover().move(b, within_s=0)
    assert await here.states() == {"a": "left", "b": "here"}
    a.down = True
    assert (await here.mover().move(b, within_s=0))["state"] == "there"
    assert await remembered(here) == (["b"] if looked else [])
    if not looked:
        return
    a.down = False
    assert (await here.mover().move(b, within_s=0))["state"] == "moved"
    assert await remembered(here) == []


async def test_what_is_left_of_a_move_goes_with_a_way_back_that_is_repeated(here: NearTown) -> None:
    a, b = here.cells["a"], here.cells["b"]
    await published(a.queue)
    here.fail("dies", after=3)
    with pytest.raises(Died):
        await here.mover().move(b, within_s=0)
    b.down = True
    assert (await here.mover().back(lost=False))["state"] == "back"
    b.down = False
    assert await here.states() == {"a": "here", "b": "arriving"}
    assert (await here.mover().back(lost=False))["state"] == "there"
    assert await here.states() == {"a": "here", "b": "gone"}
    await whole_in(here, "a", {"waits"})


async def test_a_run_whose_new_cell_has_no_room_comes_back(here: NearTown) -> None:
    """Also while its own cell has none."""
    a, b = here.cells["a"], here.cells["b"]
    await published(a.queue)
    here.fail("dies", after=3)
    with pytest.raises(Died):
        await here.mover().move(b, within_s=0)
    await a.queue.command("CONFIG", "SET", "maxmemory", 1, "maxmemory-policy", "noeviction")
    try:
        with pytest.raises(Problem, match="cell b refuses a step of run 'r': Redis has reached its memory limit"):
            await here.mover().move(b, within_s=0)
        assert (await here.mover().back(lost=False))["state"] == "back"
    finally:
        await a.queue.command("CONFIG", "SET", "maxmemory", 0)
    await whole_in(here, "a", {"waits"})


async def test_an_operator_moves_another_tenants_run_and_a_guest_moves_none(here: NearTown) -> None:
    a, b = here.cells["a"], here.cells["b"]
    await published(a.queue)
    with pytest.raises(Problem, match="your tenant has no run 'r' in any cell: an operator names another tenant"):
        await here.mover("operators").move(b, within_s=0)
    for mover in (here.mover("guest", of="acme"), here.mover("guest")):
        with pytest.raises((CellRefusal, Problem), match=r"only an operator moves runs|has no run"):
            await mover.move(b, within_s=0)
    assert (await here.mover("operators", of="acme").move(b, within_s=0))["state"] == "moved"
    await whole_in(here, "b", {"waits"})
    home = here.mover()._directory.home("r")
    noted = await here.cells[home.name].client.get("/v1/runs/r/cell", headers=bearer("acme"))
    assert noted.json() == {"cell": "b"}
    assert (await here.mover("operators", of="acme").progress())["cell"] == "b"


@pytest.mark.parametrize("fenced", [True, False])
async def test_until_it_has_arrived_neither_cell_says_of_anything_that_it_is_done(
    here: NearTown, *, fenced: bool
) -> None:
    """An acknowledgement that was answered there would be lost. The control: cells without a note of the departure."""
    a, b = here.cells["a"], here.cells["b"]
    await published(a.queue)
    here.fail("dies", after=4)
    with pytest.raises(Died):
        await here.mover().move(b, within_s=0)
    assert await here.states() == {"a": "left", "b": "arriving"}
    if not fenced:
        for cell in here.cells.values():
            await cell.queue.command("DEL", cell.queue.keys.away(RUN))
    for method, path, body in (
        ("GET", "/results?wait=0", None),
        ("GET", "/groups", None),
        ("GET", "", None),
        ("POST", "/ack", {"cursors": ["1-1"]}),
        ("POST", "/resume", None),
        ("POST", "/cancel", None),
    ):
        found = [
            (await cell.client.request(method, f"/v1/runs/r{path}", headers=bearer("acme"), json=body)).status_code
            for cell in (a, b)
        ]
        assert (found == [421, 503]) is fenced, (path, found)
