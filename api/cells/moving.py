"""Moves a run from one cell to another, step by step. A move that ends anywhere is finished by the next one."""

import asyncio
import secrets
from collections.abc import Mapping
from http import HTTPMethod
from typing import Any, Final
from urllib.parse import quote

import msgspec

from api.cells.cell import Cell
from api.cells.directory import CellRefusal, Directory, rights
from api.problems import Problem, unavailable
from prorl_mq.clock import monotonic

TRY_S: Final = 0.5
STEP_S: Final = 120.0  # for one step's answer
GONE: Final = frozenset({404, 421})  # statuses of a run that is in its cell no longer


class _Elsewhere(Problem):
    """A run that is to be moved is where it shall go already, by no departure that this caller knows."""


class Mover:
    """One attempt to have a run in a cell, with the rights of its caller."""

    def __init__(self, directory: Directory, run: str, headers: Mapping[str, str]) -> None:
        self._directory = directory
        self._run = run
        self._headers = rights(headers)
        self._path = f"/v1/runs/{quote(run, safe='')}"
        self._name = secrets.token_hex(8)
        self._files = True  # whether the new cell takes them

    async def move(self, to: Cell, *, within_s: float) -> dict[str, str]:
        """Waits so long until nothing of the run is in flight. Raises `Problem`, `CellRefusal` or `CellLost`; repeat it
        then.
        """
        try:
            return await self._once(to, within_s)
        except _Elsewhere:  # another caller may have moved it meanwhile
            self._directory.forget(self._run, self._headers)
        except CellRefusal as refusal:
            if refusal.status not in GONE:
                raise
            self._directory.forget(self._run, self._headers)
        return await self._once(to, within_s)

    async def _once(self, to: Cell, within_s: float) -> dict[str, str]:
        source, departure = await self._begun(to)
        if source is None:
            source = await self._directory.holder(self._run, self._headers)
        if source is None:
            raise Problem(404, f"there is no run {self._run!r} in any cell")
        if source is to:
            return {"run_id": self._run, "cell": to.name, "state": "there"}
        if not await self._arrived(to, source, departure):
            departure = departure or await self._departed(source, to, within_s)
            await self._copied(source, to, departure)
        self._directory.forget(self._run, self._headers)
        await self._directory.moved(self._run, self._headers, source, to.name)
        await self._ask(source, HTTPMethod.POST, "/departure/vacate", {"id": departure})
        return {"run_id": self._run, "cell": to.name, "state": "moved"}

    async def _begun(self, to: Cell) -> tuple[Cell | None, str]:
        """The cell that the run has left already, with its departure. Raises `Problem` (409): it is for another one."""
        for cell in self._directory.cells.values():
            answer = await cell.ask(HTTPMethod.GET, f"{self._path}/departure", self._headers)
            if answer.status == 404:
                continue
            if answer.status != 200:
                raise CellRefusal(answer.status, answer.body)
            told = answer.json()
            if told["cell"] != to.name:
                raise Problem(
                    409, f"run {self._run!r} is on its way from {cell.name} to {told['cell']}: move it there first"
                )
            return cell, told["id"]
        return None, ""

    async def _arrived(self, to: Cell, source: Cell, departure: str) -> bool:
        """Has the cell expect the run; True if the run is there by this departure. Raises `Problem` (409)."""
        told = await self._ask(to, HTTPMethod.PUT, "/arrival", {"cell": source.name, "mover": self._name})
        match told["state"]:
            case "begun":
                self._files = told["files"]
                return False
            case "here" if departure and told["id"] == departure:
                return True
            case "here":
                raise _Elsewhere(
                    409,
                    f"cells {source.name} and {to.name} both say that they have run {self._run!r}. Ask each for its "
                    f"results, to see which your trainer uses; the one of {source.name} may move to a third cell",
                )
            case _:
                raise Problem(
                    409, f"cell {to.name} has not given run {self._run!r} away wholly: repeat that move first"
                )

    async def _departed(self, source: Cell, to: Cell, within_s: float) -> str:
        give_up, asked = monotonic() + within_s, {"cell": to.name, "files": self._files}
        while True:
            try:
                told = await self._ask(source, HTTPMethod.PUT, "/departure", asked)
            except CellRefusal as busy:
                if busy.status != 409 or monotonic() > give_up:
                    raise
                asked = {"cell": to.name}  # for files a cell looks through all of a run
                await asyncio.sleep(TRY_S)
                await self._arrived(to, source, "")  # which expects the run for a minute
                continue
            if told["cell"] != to.name:
                raise Problem(409, f"run {self._run!r} has left for {told['cell']}: move it there first")
            return str(told["id"])

    async def _copied(self, source: Cell, to: Cell, departure: str) -> None:
        after: str | None = ""
        while after is not None:
            page = await self._answer(source, HTTPMethod.POST, "/departure/page", {"id": departure, "after": after})
            read = msgspec.msgpack.decode(page)
            body = msgspec.msgpack.encode({"mover": self._name, "id": departure, "page": read})
            told = msgspec.json.decode(
                await self._sent(to, HTTPMethod.POST, "/arrival/page", body, "application/msgpack")
            )
            if told["state"] not in {"written", "opened"} and (told["state"], told["id"]) != ("here", departure):
                raise unavailable(f"another caller moves run {self._run!r} too: try again")
            after = read["after"]

    async def _ask(self, cell: Cell, method: str, path: str, body: Mapping[str, Any]) -> Any:
        return msgspec.json.decode(await self._answer(cell, method, path, body))

    async def _answer(self, cell: Cell, method: str, path: str, body: Mapping[str, Any]) -> bytes:
        return await self._sent(cell, method, path, msgspec.json.encode(body), "application/json")

    async def _sent(self, cell: Cell, method: str, path: str, body: bytes, kind: str) -> bytes:
        headers = {**self._headers, "Content-Type": kind}
        answer = await cell.ask(method, self._path + path, headers, body, within_s=STEP_S)
        if answer.status >= 400:
            raise CellRefusal(answer.status, answer.body)
        return answer.body
