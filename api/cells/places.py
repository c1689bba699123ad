"""Asks the cells where they see a run that is to move. One that has nothing to do with it may be lost."""

import asyncio
from collections.abc import Mapping
from http import HTTPMethod
from typing import NamedTuple

import msgspec

from api.cells.cell import Cell, CellLost
from api.cells.directory import CellRefusal
from api.problems import Problem, unavailable
from prorl_mq.schema.status import RunPlace

NOWHERE = RunPlace(state="none")


class RunPlaces(NamedTuple):
    """The answers of the cells, and those that have given none. `tenant`: another one than the caller's, or empty."""

    run: str
    tenant: str
    by_cell: Mapping[str, tuple[Cell, RunPlace]]
    silent: Mapping[str, CellLost]

    def of(self, cell: str) -> RunPlace:
        return self.by_cell[cell][1] if cell in self.by_cell else NOWHERE

    def leaving(self, to: str | None = None) -> tuple[Cell, RunPlace] | None:
        """The cell that the run has left and that still has its keys; of several that of a move that has not arrived.
        Raises `Problem` (409) if it has left for another cell than `to`.
        """
        found = [each for each in self.by_cell.values() if each[1].state == "left"]
        found.sort(key=lambda each: (each[1].cell != to, self.of(each[1].cell).state in {"here", "left"}))
        if not found:
            return None
        cell, place = found[0]
        if to is not None and place.cell != to:
            detail = f"run {self.run!r} is on its way from {cell.name} to {place.cell}"
            raise Problem(409, f"{detail}: move it there first, or have it back")
        return cell, place

    def holder(self, to: Cell | None = None) -> Cell:
        """The cell that has the run. Of several that say so `to` comes last. Raises `Problem` (404, 503)."""
        found = [cell for cell, place in self.by_cell.values() if place.state == "here"]
        if found:
            return min(found, key=lambda cell: cell is to)
        if self.silent:
            raise unavailable(f"{next(iter(self.silent.values()))}, and may have run {self.run!r}: try again")
        whose = f"tenant {self.tenant!r} has" if self.tenant else "your tenant has"
        hint = (
            ""
            if self.tenant
            else ": an operator names another tenant, as TENANT:RUN in the command, ?tenant= over HTTP"
        )
        raise Problem(404, f"{whose} no run {self.run!r} in any cell{hint}")

    def remembered(self) -> list[tuple[Cell, str]]:
        """The cells that keep the departure by which the run came to them, though the cell that it left has removed it;
        with that departure.
        """
        removed = {place.id for _, place in self.by_cell.values() if place.state == "gone"}
        known = [each for each in self.by_cell.values() if each[1].state in {"here", "none"} and each[1].id]
        return [(cell, place.id) for cell, place in known if place.id in removed]

    def expecting(self, source: Cell) -> list[Cell]:
        """The cells that a run is to come to from its holder."""
        return [
            cell for cell, place in self.by_cell.values() if place.state == "arriving" and place.cell == source.name
        ]


async def look(cells: Mapping[str, Cell], run: str, tenant: str, target: str, headers: Mapping[str, str]) -> RunPlaces:
    """Asks all cells. Raises `CellRefusal`, and `Problem` (502) for one whose release moves no runs."""

    async def one(cell: Cell) -> RunPlace | CellLost:
        try:
            answer = await cell.ask(HTTPMethod.GET, target, headers)
        except CellLost as lost:
            return lost
        if answer.status in {404, 405}:
            raise Problem(502, f"the API of cell {cell.name} is of a release that moves no runs: upgrade it")
        if answer.status >= 400:
            raise CellRefusal(answer.status, answer.body, answer.headers)
        return msgspec.json.decode(answer.body, type=RunPlace)

    told = dict(zip(cells.values(), await asyncio.gather(*map(one, cells.values())), strict=True))
    return RunPlaces(
        run,
        tenant,
        {cell.name: (cell, each) for cell, each in told.items() if isinstance(each, RunPlace)},
        {cell.name: each for cell, each in told.items() if isinstance(each, CellLost)},
    )
