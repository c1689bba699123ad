"""Answers in a move that are of a third cell, or name one: a run never comes to be where nobody looks for it."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from api.cells.cell import Cell
from api.cells.moving import Mover
from api.cells.places import RunPlaces
from api.problems import Problem
from prorl_mq.store import core
from prorl_mq.store.scripts import Script, script
from prorl_mq.store.server.connection import RedisSettings
from tests.cells.near import Died, NearCell, NearTown, near, waiting
from tests.support.queue import RUN
from tests.verbs.moved import published

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


@pytest.fixture
async def here(settings: RedisSettings) -> AsyncIterator[NearTown]:
    """The run is in `a`."""
    async with near(settings, ("a", "b", "c")) as made:
        await published(made.cells["a"].queue)
        yield made


async def left_for_c(here: NearTown, *, expected: bool = False) -> None:
    """By a mover that has died since; `expected`: it has not left yet."""
    here.fail("dies", after=3 if expected else 4)
    with pytest.raises(Died):
        await here.mover().move(here.cells["c"], within_s=0)
    assert await here.states() == {"a": "here" if expected else "left", "b": "none", "c": "arriving"}


@pytest.mark.parametrize("compared", [True, False])
async def test_a_run_that_leaves_for_a_third_cell_meanwhile_is_not_taken_elsewhere(
    here: NearTown, monkeypatch: pytest.MonkeyPatch, compared: bool
) -> None:
    """The control takes the departure that it is answered for its own: the old cell leads everybody to the third."""
    a, b = here.cells["a"], here.cells["b"]
    late = here.mover()
    looked, ask = late._looked, late._ask

    async def overtaken() -> RunPlaces:
        monkeypatch.setattr(late, "_looked", looked)
        found = await looked()
        await left_for_c(here)
        return found

    async def trusting(cell: Cell, method: str, path: str, body: Mapping[str, Any]) -> Any:
        told = await ask(cell, method, path, body)
        return told | {"cell": body["cell"]} if path == "/departure" else told

    monkeypatch.setattr(late, "_looked", overtaken)
    if compared:
        with pytest.raises(Problem, match="run 'r' has left for c: move it there first"):
            await late.move(b, within_s=0)
        assert await here.states() == {"a": "left", "b": "arriving", "c": "arriving"}
        assert (await here.mover().move(here.cells["c"], within_s=0))["state"] == "moved"
        return
    monkeypatch.setattr(late, "_ask", trusting)
    assert (await late.move(b, within_s=0))["state"] == "moved"
    assert await here.states() == {"a": "gone", "b": "here", "c": "arriving"}
    assert await a.queue.command("HGET", a.queue.keys.away(RUN), "cell") == b"c"


@pytest.mark.parametrize("compared", [True, False])
async def test_a_run_on_its_way_to_a_third_cell_goes_there_first(
    here: NearTown, monkeypatch: pytest.MonkeyPatch, compared: bool
) -> None:
    """The control copies it to the cell that is asked for, by the departure for the other one."""
    b = here.cells["b"]
    await left_for_c(here)
    if compared:
        with pytest.raises(Problem, match="run 'r' is on its way from a to c: move it there first"):
            await here.mover().move(b, within_s=0)
        assert (await here.states())["b"] == "none"
        return
    leaving = RunPlaces.leaving
    monkeypatch.setattr(RunPlaces, "leaving", lambda seen, _: leaving(seen))
    await here.mover().move(b, within_s=0)
    assert await here.states() == {"a": "gone", "b": "here", "c": "arriving"}


class Astray(Mover):
    """Its pages for `b` reach another cell, as by an address that leads to one of two."""

    to: NearCell
    known = False  # no answer is compared with the departure

    async def _sent(self, cell: Cell, method: str, path: str, body: bytes, kind: str) -> bytes:
        answer = await super()._sent(self.to if path == "/arrival/page" else cell, method, path, body, kind)
        told = msgspec.json.decode(answer) if path == "/arrival/page" else {}
        if self.known and told.get("state") == "here":
            return msgspec.json.encode(told | {"id": msgspec.msgpack.decode(body)["id"]})
        return answer


def astray(here: NearTown) -> Astray:
    found = here.mover()
    mover = Astray(found._directory, "r", found._headers)
    mover.to = here.cells["c"]
    return mover


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_page_that_reaches_a_cell_that_expects_the_run_of_another_mover_opens_it_nowhere(
    here: NearTown, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """The control: a cell that does not ask whose page it is has the run then, and nobody is led there."""
    if not guarded:
        whole = script("arrive")
        text = whole.text.replace("if f[2] ~= A.mover then", "if false then")
        assert text != whole.text
        monkeypatch.setattr(core, "script", lambda name: Script(name, text) if name == whole.name else script(name))
    await left_for_c(here, expected=True)
    mover, b = astray(here), here.cells["b"]
    if not guarded:
        assert (await mover.move(b, within_s=0))["state"] == "moved"
        assert await here.states() == {"a": "gone", "b": "arriving", "c": "here"}
        return
    with pytest.raises(Problem, match="another caller moves run 'r' too"):
        await mover.move(b, within_s=0)
    assert await here.states() == {"a": "left", "b": "arriving", "c": "arriving"}
    assert (await here.mover().move(b, within_s=0))["state"] == "moved"
    assert await waiting(b.queue) == {"waits"}


@pytest.mark.parametrize("compared", [True, False])
async def test_a_page_that_reaches_a_cell_with_another_run_of_that_name_loses_nothing(
    here: NearTown, compared: bool
) -> None:
    """The control takes it that the run has arrived there, and has it removed where it was."""
    mover, b = astray(here), here.cells["b"]
    await here.cells["c"].queue.submit("another", batch="another")
    mover.known = not compared
    if not compared:
        assert (await mover.move(b, within_s=0))["state"] == "moved"
        assert [await waiting(each.queue) for each in here.cells.values()] == [set(), set(), {"another"}]
        return
    with pytest.raises(Problem, match="another caller moves run 'r' too"):
        await mover.move(b, within_s=0)
    assert await waiting(here.cells["a"].queue) == {"waits"}
    assert await waiting(here.cells["c"].queue) == {"another"}
