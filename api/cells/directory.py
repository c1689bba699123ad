"""Which cell holds a run: the run's home keeps a note of it, and the cell that holds it is the truth."""

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPMethod
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from api.cells.cell import Cell, CellAnswer, CellLost
from api.problems import Problem, unavailable

KNOWN: Final = 65_536  # runs whose cell is remembered
NOTED_S: Final = 24 * 3600.0  # then a run that is submitted to is noted again: a note is kept for thirty days
TOLD: Final = ("retry-after", "www-authenticate")  # headers of a refusal


class Located(NamedTuple):
    """A run's cell, and when it was looked for, on the monotonic clock."""

    cell: Cell
    at: float


class Directory:
    """Finds and places runs with the rights of the caller: a cell tells nobody of another tenant's runs."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = {cell.name: cell for cell in cells}
        self._known = OrderedDict[tuple[bytes, str], Located]()

    def home(self, run: str) -> Cell:
        """The cell with the highest hash of its name and the run's: with another cell only its own share moves."""
        return max(self.cells.values(), key=lambda cell: _rank(cell, run))

    def any(self) -> Cell:
        """A cell that answered when it was last asked, if there is one."""
        return self.by_answers()[0]

    def by_answers(self) -> list[Cell]:
        """Those that answered when they were last asked first; then the one that has not for longest."""
        return sorted(self.cells.values(), key=lambda cell: cell.lost_at)

    async def let_in(self, headers: Mapping[str, str]) -> None:
        """Returns if a cell knows the caller. Raises `CellRefusal`, or `CellLost` where none answers."""
        cells = self.by_answers()
        for cell in cells:
            try:
                access = _sure(cell, await cell.ask(HTTPMethod.GET, "/v1/access", headers))
            except CellLost:
                if cell is cells[-1]:
                    raise
                continue
            if access.status >= 400:
                raise CellRefusal(access.status, access.body, access.headers)
            return

    async def holder(self, run: str, headers: Mapping[str, str], *, makes: bool = False) -> Cell | None:
        """None: there is no such run. Raises `Problem` (503) where a cell that does not answer may have it. A request
        that `makes` a run where there is none needs its home alone: what is noted there first counts.
        """
        known = self._known.get(_caller(run, headers))
        if known is not None and not (makes and time.monotonic() - known.at > NOTED_S):
            return known.cell
        home = self.home(run)
        try:
            found = await self._noted(home, run, headers)
        except CellLost:
            found = known.cell if known is not None else None
        if found is None:
            found = await self._sought(run, headers, home, makes=makes)
        elif known is not None:
            await self._note_if_possible(home, run, found, headers)
        if found is not None:
            self.learn(run, headers, found)
        return found

    async def place(self, run: str, headers: Mapping[str, str]) -> Cell:
        """The cell of a new run: the one with the most room, or what another router noted first."""
        home = self.home(run)
        best = await self._roomiest(run, headers)
        cell = await self._note(home, run, best, headers)
        self.learn(run, headers, cell)
        return cell

    async def moved(self, run: str, headers: Mapping[str, str], old: Cell, name: str) -> Cell:
        """Follows a run to the cell that its old one names. Raises `Problem` (502)."""
        cell = self.cells.get(name)
        if cell is None or cell is old:
            raise _unknown(name, f"cell {old.name} says that run {run!r} is in it")
        self.learn(run, headers, cell)
        await self._note_if_possible(self.home(run), run, cell, headers, was=old.name)
        return cell

    async def found(self, run: str, headers: Mapping[str, str], cell: Cell, *, was: str, tenant: str) -> None:
        """Notes where a move of the caller's has ended, for the run of another `tenant` too."""
        if not tenant:
            self.learn(run, headers, cell)
        await self._note_if_possible(self.home(run), run, cell, headers, was=was, tenant=tenant)

    def learn(self, run: str, headers: Mapping[str, str], cell: Cell) -> None:
        caller = _caller(run, headers)
        self._known[caller] = Located(cell, time.monotonic())
        self._known.move_to_end(caller)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    def forget(self, run: str, headers: Mapping[str, str]) -> None:
        self._known.pop(_caller(run, headers), None)

    async def _noted(self, cell: Cell, run: str, headers: Mapping[str, str]) -> Cell | None:
        """The cell that is noted for a run. Raises `CellLost`, `CellRefusal`, `Problem` (502)."""
        answer = _sure(cell, await cell.ask(HTTPMethod.GET, _path(run), rights(headers)))
        if answer.status in {401, 403}:
            raise CellRefusal(answer.status, answer.body, answer.headers)
        name = _named(answer) if answer.status == 200 else ""
        if name and name not in self.cells:
            raise _unknown(name, f"run {run!r} is noted to be in it")
        return self.cells.get(name)

    async def _note(
        self, home: Cell, run: str, cell: Cell, headers: Mapping[str, str], was: str | None = None, tenant: str = ""
    ) -> Cell:
        """Notes a run's cell unless another one is noted; the one that is noted then. Raises `Problem`, `CellLost`,
        `CellRefusal`.
        """
        body = msgspec.json.encode({"cell": cell.name, "was": was})
        named = {**rights(headers), "Content-Type": "application/json"}
        query = f"?tenant={quote(tenant, safe='')}" if tenant else ""
        answer = await home.ask(HTTPMethod.PUT, _path(run) + query, named, body)
        if answer.status >= 400 and answer.status not in {404, 405}:
            raise CellRefusal(answer.status, answer.body, answer.headers)
        name = _named(answer)
        if not name:
            detail = f"cell {home.name} takes no note of a run: its API is of an older release, or none; upgrade it"
            raise Problem(502, detail, kind="no-cell")
        if name not in self.cells:
            raise _unknown(name, f"run {run!r} is noted to be in it")
        return self.cells[name]

    async def _note_if_possible(
        self, home: Cell, run: str, cell: Cell, headers: Mapping[str, str], was: str | None = None, tenant: str = ""
    ) -> None:
        """A caller who may only read notes nothing; the run is found again in the same way."""
        with contextlib.suppress(CellLost, CellRefusal, Problem):
            await self._note(home, run, cell, headers, was, tenant)

    async def _sought(self, run: str, headers: Mapping[str, str], home: Cell, *, makes: bool) -> Cell | None:
        """The cell of a run of which its home has no note: one that was made there without a router, or before another
        cell became its home. It is noted then.
        """
        told = await self._each(self._has, run, headers)
        silent = [each for each in told if isinstance(each, CellLost)]
        found = next((each for each in told if isinstance(each, Cell)), None)
        if found is None and silent and makes:
            told = await self._each(self._noted, run, headers)  # the home that it had before
            found = next((each for each in told if isinstance(each, Cell)), None)
        if found is not None:
            await self._note_if_possible(home, run, found, headers)
        elif silent and (not makes or home in {each.cell for each in silent}):
            raise unavailable(f"{silent[0]}, and may know where run {run!r} is: try again")
        return found

    async def _each(
        self,
        ask: Callable[[Cell, str, Mapping[str, str]], Awaitable[Cell | None]],
        run: str,
        headers: Mapping[str, str],
    ) -> "list[Cell | CellLost | None]":
        async def one(cell: Cell) -> "Cell | CellLost | None":
            try:
                return await ask(cell, run, headers)
            except CellLost as lost:
                return lost
            except CellRefusal:
                return None

        return await asyncio.gather(*map(one, self.cells.values()))

    async def _has(self, cell: Cell, run: str, headers: Mapping[str, str]) -> Cell | None:
        """The cell where it says that it has the run, the other one where it had it. Raises `CellLost`."""
        answer = _sure(cell, await cell.ask(HTTPMethod.GET, f"/v1/runs/{quote(run, safe='')}", rights(headers)))
        if answer.status == 421 and (name := _named(answer)):
            return self.cells.get(name, cell)
        return cell if answer.status == 200 else None

    async def _roomiest(self, run: str, headers: Mapping[str, str]) -> Cell:
        """By jobs that wait and run, in slots of RUN; of equal ones, as of idle cells, each is the first for its share
        of runs. Raises `Problem` (503), or `CellRefusal`.
        """
        answers = await asyncio.gather(*(self._load(cell, headers) for cell in self.cells.values()))
        loads = {cell: load for cell, load in zip(self.cells.values(), answers, strict=True) if isinstance(load, float)}
        if loads:
            least = min(loads.values())
            return max((cell for cell in loads if loads[cell] == least), key=lambda cell: _rank(cell, run))
        if refused := next((each for each in answers if isinstance(each, CellRefusal)), None):
            raise refused
        raise unavailable("no cell answers: try again")

    async def _load(self, cell: Cell, headers: Mapping[str, str]) -> "float | CellRefusal | None":
        """None: it does not answer, or not as an API does."""
        try:
            answer = await cell.ask(HTTPMethod.GET, "/v1/overview", rights(headers))
            return (
                load_of(answer.json())
                if answer.status == 200
                else CellRefusal(answer.status, answer.body, answer.headers)
            )
        except (CellLost, LookupError, TypeError, AttributeError):
            return None


class CellRefusal(Exception):
    """A cell's refusal of a question of the router, for its caller."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(body[:500].decode(errors="replace"))
        self.status, self.body = status, body
        self.headers = {name: value for name, value in (headers or {}).items() if name.lower() in TOLD}


def load_of(overview: Mapping[str, Any]) -> float:
    """Jobs that wait and run, and groups of the backlog, in slots of RUN; a cell without any comes last."""
    stages = {each["stage"]: each for each in overview["stages"]}
    slots = stages.get("run", {}).get("slots", 0)
    jobs = sum(each["queued"] + each["running"] for each in stages.values())
    return float((jobs + overview["backlog_groups"]) / slots if slots else float("inf"))


def _unknown(name: str, why: str) -> Problem:
    return Problem(502, f"the router's file names no cell {name[:96]!r}, and {why}: add it", kind="unknown-cell")


def _sure(cell: Cell, answer: CellAnswer) -> CellAnswer:
    """An answer that says whether a cell knows a run. Raises `CellLost` for one of a cell that is too busy, or ill."""
    if answer.status == 429 or answer.status >= 500:
        raise CellLost(cell, f"status {answer.status}")
    return answer


def _named(answer: CellAnswer) -> str:
    """The cell that an answer names; empty where it names none."""
    told = answer.json()
    name = told.get("cell") if isinstance(told, dict) else None
    return name if isinstance(name, str) else ""


def _rank(cell: Cell, run: str) -> bytes:
    return hashlib.blake2b(f"{cell.name}/{run}".encode(), digest_size=8).digest()


def _path(run: str) -> str:
    return f"/v1/runs/{quote(run, safe='')}/cell"


def rights(headers: Mapping[str, str]) -> dict[str, str]:
    """The part of a caller's headers that a question of the router has."""
    said = headers.get("authorization")
    return {} if said is None else {"authorization": said}


def _caller(run: str, headers: Mapping[str, str]) -> tuple[bytes, str]:
    said = headers.get("authorization", "")
    return hashlib.blake2b(said.encode(), digest_size=16).digest(), run
