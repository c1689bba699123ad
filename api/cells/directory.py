"""Which cell holds a run: the run's home keeps a note of it, and the cell that holds it is the truth."""

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from http import HTTPMethod
from typing import Any, Final
from urllib.parse import quote

import msgspec

from api.cells.cell import Cell, CellLost
from api.problems import Problem, unavailable

KNOWN: Final = 65_536  # runs whose cell is remembered


class Directory:
    """Finds and places runs with the rights of the caller: a cell tells nobody of another tenant's runs."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = {cell.name: cell for cell in cells}
        self._known = OrderedDict[tuple[bytes, str], Cell]()

    def home(self, run: str) -> Cell:
        """The cell with the highest hash of its name and the run's: with another cell only its own share moves."""
        return max(
            self.cells.values(),
            key=lambda cell: hashlib.blake2b(f"{cell.name}/{run}".encode(), digest_size=8).digest(),
        )

    async def holder(self, run: str, headers: Mapping[str, str]) -> Cell | None:
        """None: there is no such run. Raises `Problem` (503) where a cell that does not answer may have it."""
        caller = _caller(run, headers)
        if (known := self._known.get(caller)) is not None:
            return known
        home = self.home(run)
        lost: CellLost | None = None
        try:
            noted = await self._noted(home, run, headers)
        except CellLost as error:
            noted, lost = None, error
        if noted is None:
            noted = await self._asked(run, headers)
        if noted is not None:
            self.learn(run, headers, noted)
        elif lost is not None:
            raise unavailable(f"{lost}, and where run {run!r} is, is noted there: try again")
        return noted

    async def place(self, run: str, headers: Mapping[str, str]) -> Cell:
        """The cell of a new run: the one with the most room, or what another router noted first."""
        home = self.home(run)
        best = await self._roomiest(headers)
        cell = await self._note(home, run, best, headers)
        self.learn(run, headers, cell)
        return cell

    async def moved(self, run: str, headers: Mapping[str, str], old: Cell, name: str) -> Cell:
        """Follows a run to the cell that its old one names. Raises `Problem` (502)."""
        cell = self.cells.get(name)
        if cell is None or cell is old:
            raise _unknown(name, f"cell {old.name} says that run {run!r} is in it")
        self.learn(run, headers, cell)
        with contextlib.suppress(CellLost):  # it is noted when it is asked for again: the old cell says the same
            await self._note(self.home(run), run, cell, headers, was=old.name)
        return cell

    def learn(self, run: str, headers: Mapping[str, str], cell: Cell) -> None:
        caller = _caller(run, headers)
        self._known[caller] = cell
        self._known.move_to_end(caller)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    def forget(self, run: str, headers: Mapping[str, str]) -> None:
        self._known.pop(_caller(run, headers), None)

    async def _noted(self, home: Cell, run: str, headers: Mapping[str, str]) -> Cell | None:
        answer = await home.ask(HTTPMethod.GET, _path(run), rights(headers))
        told = answer.json() if answer.status == 200 else None
        return self.cells.get(told.get("cell", "")) if isinstance(told, dict) else None

    async def _note(self, home: Cell, run: str, cell: Cell, headers: Mapping[str, str], was: str | None = None) -> Cell:
        """Notes a run's cell unless another one is noted; the one that is noted then. Raises `Problem`, `CellLost`."""
        body = msgspec.json.encode({"cell": cell.name, "was": was})
        named = {**rights(headers), "Content-Type": "application/json"}
        answer = await home.ask(HTTPMethod.PUT, _path(run), named, body)
        told = answer.json()
        if answer.status >= 400 or not isinstance(told, dict):
            raise CellRefusal(answer.status, answer.body)
        noted = self.cells.get(told.get("cell", ""))
        if noted is None:
            raise _unknown(str(told.get("cell")), f"run {run!r} is noted to be in it")
        return noted

    async def _asked(self, run: str, headers: Mapping[str, str]) -> Cell | None:
        """A cell that says that it has the run, made there without a router."""

        async def has(cell: Cell) -> Cell | None:
            try:
                answer = await cell.ask(HTTPMethod.GET, f"/v1/runs/{quote(run, safe='')}", rights(headers))
            except CellLost:
                return None
            return cell if answer.status in {200, 421} else None

        found = await asyncio.gather(*map(has, self.cells.values()))
        return next(filter(None, found), None)

    async def _roomiest(self, headers: Mapping[str, str]) -> Cell:
        """By jobs that wait and run, in slots of RUN. Raises `Problem` (503), or `CellRefusal`."""
        answers = await asyncio.gather(*(self._load(cell, headers) for cell in self.cells.values()))
        loads = {cell: load for cell, load in zip(self.cells.values(), answers, strict=True) if isinstance(load, float)}
        if loads:
            return min(loads, key=lambda cell: loads[cell])
        if refused := next((each for each in answers if isinstance(each, CellRefusal)), None):
            raise refused
        raise unavailable("no cell answers: try again")

    async def _load(self, cell: Cell, headers: Mapping[str, str]) -> "float | CellRefusal | None":
        try:
            answer = await cell.ask(HTTPMethod.GET, "/v1/overview", rights(headers))
        except CellLost:
            return None
        told = answer.json()
        if answer.status != 200 or not isinstance(told, dict):
            return CellRefusal(answer.status, answer.body)
        return load_of(told)


class CellRefusal(Exception):
    """A cell's refusal of a question of the router, for its caller."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(body[:500].decode(errors="replace"))
        self.status, self.body = status, body


def load_of(overview: Mapping[str, Any]) -> float:
    """Jobs that wait and run, and groups of the backlog, in slots of RUN; a cell without any comes last."""
    stages = {each["stage"]: each for each in overview["stages"]}
    slots = stages.get("run", {}).get("slots", 0)
    jobs = sum(each["queued"] + each["running"] for each in stages.values())
    return float((jobs + overview["backlog_groups"]) / slots if slots else float("inf"))


def _unknown(name: str, why: str) -> Problem:
    return Problem(502, f"the router's file names no cell {name[:96]!r}, and {why}: add it", kind="unknown-cell")


def _path(run: str) -> str:
    return f"/v1/runs/{quote(run, safe='')}/cell"


def rights(headers: Mapping[str, str]) -> dict[str, str]:
    """The part of a caller's headers that a question of the router has."""
    return {name: value for name, value in headers.items() if name.lower() == "authorization"}


def _caller(run: str, headers: Mapping[str, str]) -> tuple[bytes, str]:
    said = headers.get("authorization", "")
    return hashlib.blake2b(said.encode(), digest_size=16).digest(), run
