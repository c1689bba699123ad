"""Moves a run from one cell to another, step by step. A move that ends anywhere is finished by the next one."""

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPMethod
from typing import Any, Final
from urllib.parse import quote

import msgspec

from api.cells.cell import Cell, CellLost
from api.cells.directory import CellRefusal, Directory, rights
from api.cells.places import RunPlaces, look
from api.problems import Problem, unavailable
from prorl_mq.clock import monotonic
from prorl_mq.schema.status import RunPlace

TRY_S: Final = 0.5
STEP_S: Final = 120.0  # for one step's answer
RESTARTS: Final = 8  # of the new cell's Redis, within one move
GONE: Final = frozenset({404, 421})  # statuses of a run that is in its cell no longer
Answer = dict[str, Any]


class _Elsewhere(Problem):
    """A run that is to be moved is where it shall go already, by no departure that this caller knows."""


class Mover:
    """One attempt to have a run in a cell, with the rights of its caller. `tenant`: another one, whose run it is."""

    def __init__(self, directory: Directory, run: str, headers: Mapping[str, str], tenant: str = "") -> None:
        self._directory = directory
        self._run = run
        self._headers = rights(headers)
        self._tenant = tenant
        self._path = f"/v1/runs/{quote(run, safe='')}"
        self._query = f"?tenant={quote(tenant, safe='')}" if tenant else ""
        self._name = secrets.token_hex(8)
        self._files = True  # whether the new cell takes them

    async def move(self, to: Cell, *, within_s: float) -> Answer:
        """Waits so long until nothing of the run is in flight. Raises `Problem`, `CellRefusal` or `CellLost`; repeat it
        then.
        """
        try:
            return await self._once(to, within_s)
        except _Elsewhere:  # another caller may have moved it meanwhile
            pass
        except CellRefusal as refusal:
            if refusal.status not in GONE:
                raise
        return await self._once(to, within_s)

    async def progress(self) -> Answer:
        """Says where the run is, or between which cells, with the pages that have come so far."""
        seen = await self._looked()
        leaving = seen.leaving()
        if leaving is None:
            return {"run_id": self._run, "cell": seen.holder().name, "state": "there"}
        source, place = leaving
        pages = seen.of(place.cell).pages
        return {"run_id": self._run, "cell": source.name, "state": "moving", "to": place.cell, "pages": pages}

    async def back(self, *, lost: bool) -> Answer:
        """Has a run that has left its cell, and has not arrived, continue there. `lost`: the other cell comes back no
        more. Raises `Problem`, `CellRefusal` or `CellLost`; repeat it then.
        """
        seen = await self._looked()
        leaving = seen.leaving()
        if leaving is None:
            source = seen.holder()
            for cell in seen.expecting(source):  # what is left of a move that ended in the middle
                await self._refused(cell, source, "")
            return {"run_id": self._run, "cell": source.name, "state": "there"}
        source, place = leaving
        to = self._directory.cells.get(place.cell)
        said = await self._returned(source, place.id, "ask")
        if said == "given":
            await self._surely_refused(source, to, place, lost=lost)
            said = await self._returned(source, place.id, "sure")
        elif to is not None:
            with suppress(CellLost, CellRefusal, Problem):
                await self._refused(to, source, place.id)
        if said != "restored":
            raise unavailable(f"another caller moves run {self._run!r} too: try again")
        await self._directory.found(self._run, self._headers, source, was=place.cell, tenant=self._tenant)
        return {"run_id": self._run, "cell": source.name, "state": "back"}

    async def _surely_refused(self, source: Cell, to: Cell | None, place: RunPlace, *, lost: bool) -> None:
        """Raises `Problem` where the other cell has the run, or may have it; then it is not taken back."""
        state = "silent"
        if to is not None:
            with suppress(CellLost, Problem):
                state = await self._refused(to, source, place.id)
        if state == "refused" or (state == "silent" and lost):
            return
        await self._returned(source, place.id, "keep")
        if state in {"here", "left"}:
            raise Problem(
                409,
                f"run {self._run!r} has arrived in cell {place.cell}: repeat that move, which ends it, then move it to "
                f"{source.name}",
            )
        raise unavailable(
            f"cell {place.cell} does not answer, and may have opened run {self._run!r}: try again when it does, or say "
            "lost=true if its data is lost for good"
        )

    async def _once(self, to: Cell, within_s: float) -> Answer:
        seen = await self._looked()
        await self._ended(seen)
        leaving = seen.leaving(to.name)
        source, departure = (leaving[0], leaving[1].id) if leaving is not None else (seen.holder(to), "")
        if source is to:
            return {"run_id": self._run, "cell": to.name, "state": "there"}
        if not await self._arrived(to, source, departure):
            departure = departure or await self._departed(source, to, within_s)
            await self._copied(source, to, departure)
        await self._directory.found(self._run, self._headers, to, was=source.name, tenant=self._tenant)
        await self._ask(source, HTTPMethod.POST, "/departure/vacate", {"id": departure})
        await self._over(to, departure)
        return {"run_id": self._run, "cell": to.name, "state": "moved"}

    async def _ended(self, seen: RunPlaces) -> None:
        """Ends earlier moves of the run whose old cell has removed it, and whose new one was not told so."""
        for cell, departure in seen.remembered():
            await self._over(cell, departure)

    async def _over(self, cell: Cell, departure: str) -> None:
        with suppress(CellLost, CellRefusal, Problem):
            await self._ask(cell, HTTPMethod.POST, "/arrival/over", {"id": departure})

    async def _looked(self) -> RunPlaces:
        target = self._path + "/arrival" + self._query
        return await look(self._directory.cells, self._run, self._tenant, target, self._headers)

    async def _arrived(self, to: Cell, source: Cell, departure: str) -> bool:
        """Has the cell expect the run; True if the run has come there by this departure. Raises `Problem` (409)."""
        told = await self._ask(
            to, HTTPMethod.PUT, "/arrival", {"cell": source.name, "mover": self._name, "id": departure}
        )
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
                await asyncio.sleep(TRY_S)
                await self._arrived(to, source, "")  # which expects the run for a minute
                continue
            if told["cell"] != to.name:
                raise Problem(409, f"run {self._run!r} has left for {told['cell']}: move it there first")
            return str(told["id"])

    async def _copied(self, source: Cell, to: Cell, departure: str) -> None:
        """Has the run open in the new cell. Where that has lost pages with its last second, all of them come again."""
        after: str | None = ""
        restarts, first = 0, True
        while after is not None:
            page = await self._answer(source, HTTPMethod.POST, "/departure/page", {"id": departure, "after": after})
            read = msgspec.msgpack.decode(page)
            body = msgspec.msgpack.encode({"mover": self._name, "id": departure, "page": read, "first": first})
            told = msgspec.json.decode(
                await self._sent(to, HTTPMethod.POST, "/arrival/page", body, "application/msgpack")
            )
            if told["state"] == "restarted" and restarts < RESTARTS:
                after, restarts, first = "", restarts + 1, True
                continue
            if told["state"] not in {"written", "opened"} and (told["state"], told["id"]) != ("here", departure):
                raise unavailable(f"another caller moves run {self._run!r} too: try again")
            after, first = read["after"], False

    async def _returned(self, source: Cell, departure: str, step: str) -> str:
        told = await self._ask(source, HTTPMethod.POST, "/departure/back", {"id": departure, "step": step})
        return str(told["state"])

    async def _refused(self, cell: Cell, source: Cell, departure: str) -> str:
        about = {"cell": source.name, "mover": self._name, "id": departure}
        return str((await self._ask(cell, HTTPMethod.POST, "/arrival/refuse", about))["state"])

    async def _ask(self, cell: Cell, method: str, path: str, body: Mapping[str, Any]) -> Any:
        return msgspec.json.decode(await self._answer(cell, method, path, body))

    async def _answer(self, cell: Cell, method: str, path: str, body: Mapping[str, Any]) -> bytes:
        return await self._sent(cell, method, path, msgspec.json.encode(body), "application/json")

    async def _sent(self, cell: Cell, method: str, path: str, body: bytes, kind: str) -> bytes:
        headers = {**self._headers, "Content-Type": kind}
        answer = await cell.ask(method, self._path + path + self._query, headers, body, within_s=STEP_S)
        if answer.status == 429 or answer.status >= 500:
            raise unavailable(f"cell {cell.name} refuses a step of run {self._run!r}: {answer.why}")
        if answer.status >= 400:
            raise CellRefusal(answer.status, answer.body)
        return answer.body
